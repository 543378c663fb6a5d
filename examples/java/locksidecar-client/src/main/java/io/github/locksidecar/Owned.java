package io.github.locksidecar;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;

/**
 * What {@link SidecarLock#lock} has taken and {@link SidecarLock#unlock} is to give back: for each
 * resource and owner a stack of holds. The owner is the thread, or the label of {@link
 * SidecarLock#withOwner}.
 */
final class Owned {
  /**
   * Who may unlock.
   *
   * @param resources what is locked, in the order in which it was named
   * @param owner a Thread (which has its own identity as equality) or a String
   */
  record Key(List<String> resources, Object owner) {}

  /** One lock() that was not unlocked yet. */
  private record Entry(LockMode asked, Hold hold) {}

  private static final AtomicLong last = new AtomicLong();
  private static final ThreadLocal<String> LABEL = ThreadLocal.withInitial(Owned::newLabel);

  private final ReentrantLock mu = new ReentrantLock();
  private final Map<Key, Deque<Entry>> stacks = new HashMap<>(); // guarded by mu

  /** Who this thread is for the sidecar: always the same, also when its name changes. */
  static String label() {
    return LABEL.get();
  }

  /** A label that nobody else has in this process. People see it in lists. */
  static String newLabel() {
    StringBuilder b = new StringBuilder();
    String name = Thread.currentThread().getName();
    name.chars().limit(64).filter(c -> c > ' ' && c < 127).forEach(c -> b.append((char) c));
    return b.append('#').append(last.incrementAndGet()).toString();
  }

  /**
   * Looks whether the owner may ask. Of a label others may be about to unlock.
   *
   * @throws LockLostException the owner is a thread that has the lock, and has lost it
   */
  void check(Key key) {
    if (!(key.owner() instanceof Thread)) {
      return;
    }
    mu.lock();
    try {
      for (Entry e : live(key)) {
        e.hold().check();
      }
    } finally {
      mu.unlock();
    }
  }

  void push(Key key, LockMode asked, Hold hold) {
    mu.lock();
    try {
      stacks.computeIfAbsent(key, k -> new ArrayDeque<>()).push(new Entry(asked, hold));
    } finally {
      mu.unlock();
    }
  }

  /** The last hold that lock() took in that mode; null: none. */
  Hold peek(Key key, LockMode asked) {
    mu.lock();
    try {
      for (Entry e : live(key)) {
        if (e.asked() == asked) {
          return e.hold();
        }
      }
      return null;
    } finally {
      mu.unlock();
    }
  }

  /**
   * Takes the last hold of that mode away.
   *
   * @return null: there is none
   */
  Popped pop(Key key, LockMode asked) {
    mu.lock();
    try {
      Hold found = null;
      List<LockMode> left = new ArrayList<>();
      for (Iterator<Entry> i = live(key).iterator(); i.hasNext(); ) {
        Entry e = i.next();
        if (found == null && e.asked() == asked) {
          found = e.hold();
          i.remove();
        } else {
          left.add(e.asked());
        }
      }
      if (left.isEmpty()) {
        stacks.remove(key);
      }
      boolean onlyReads = !left.isEmpty() && !left.contains(LockMode.EXCLUSIVE);
      return found == null ? null : new Popped(found, onlyReads);
    } finally {
      mu.unlock();
    }
  }

  /**
   * What is to be released.
   *
   * @param readsLeft the owner goes on as a reader, and as nothing else
   */
  record Popped(Hold hold, boolean readsLeft) {}

  /** The stack without what was released by its hold, maybe on another thread. mu is held. */
  private Deque<Entry> live(Key key) {
    Deque<Entry> s = stacks.get(key);
    if (s == null) {
      return new ArrayDeque<>();
    }
    s.removeIf(e -> e.hold().isReleased());
    if (s.isEmpty()) {
      stacks.remove(key);
    }
    return s;
  }
}
