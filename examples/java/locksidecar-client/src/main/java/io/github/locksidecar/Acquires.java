package io.github.locksidecar;

import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;

/**
 * The acquires of a session: those that are on their way, and those that queue here, as the sidecar
 * takes only so many. Everything is called with the session's mu held.
 */
final class Acquires {
  /** So many of one session the sidecar takes at a time, unless it says otherwise. */
  private static final int MOST = 1000;

  /**
   * From here on an acquire queues here where another for the same resources is on its way. One for
   * resources of which none is still gets through: their holder may wait for nothing else.
   */
  private static final int MANY = 800;

  private final Map<List<String>, Integer> asked = new HashMap<>(); // how many are on their way, by what they ask for
  private int size; // of all that are on their way
  private int most = MOST;

  // These queue, by the order in which they were asked for. Tries go first: they are answered at once.
  private final TreeMap<Long, Call> tries = new TreeMap<>();
  private final TreeMap<Long, Call> waits = new TreeMap<>();
  private long lastOrder;

  /** One was refused, so there is no room before one is answered. */
  private boolean full;

  /** There is no room for any of the queue while MANY are on their way and what it asks for is asked for. */
  private boolean stuck;

  /** How many are on their way. */
  int size() {
    return size;
  }

  int most() {
    return most;
  }

  /** All that queue here, in their order. */
  List<Call> queued() {
    return Stream.of(tries, waits).map(Map::values).flatMap(Collection::stream).toList();
  }

  /** Tells whether it is to be sent now: then it is on its way. Else it queues here. */
  boolean enter(Call c) {
    c.order = ++lastOrder;
    if (isCrowded(c)) {
      queueOf(c).put(c.order, c);
      stuck &= asked.containsKey(c.wanted.resources());
      return false;
    }
    leaves(c);
    return true;
  }

  /** The next one that is to be sent: it is on its way then. null: there is none, or no room. */
  Call next() {
    if (full || size >= most || stuck && size >= MANY) {
      return null;
    }
    for (TreeMap<Long, Call> queue : List.of(tries, waits)) {
      for (Call c : queue.values()) {
        if (!isCrowded(c)) {
          queue.remove(c.order);
          leaves(c);
          return c;
        }
      }
    }
    stuck = true;
    return null;
  }

  /** It is not on its way any more. */
  void answered(Call c) {
    left(c);
    full = false;
  }

  /** It was one too many, where max is what the sidecar takes; 0: it does not say. It queues in its old place. */
  void refused(Call c, int max) {
    left(c);
    most = Math.max(1, Math.min(most, max == 0 ? size : max));
    full = size > 0;
    queueOf(c).put(c.order, c);
    stuck = false;
  }

  boolean isQueued(Call c) {
    return queueOf(c).get(c.order) == c;
  }

  /** Takes it out of the queue; whether it was there. */
  boolean drop(Call c) {
    return queueOf(c).remove(c.order, c);
  }

  private TreeMap<Long, Call> queueOf(Call c) {
    return c.wanted.isTry() ? tries : waits;
  }

  private boolean isCrowded(Call c) {
    return full || size >= most || size >= MANY && asked.containsKey(c.wanted.resources());
  }

  private void leaves(Call c) {
    size++;
    asked.merge(c.wanted.resources(), 1, Integer::sum);
  }

  private void left(Call c) {
    size--;
    if (asked.computeIfPresent(c.wanted.resources(), (r, n) -> n == 1 ? null : n - 1) == null) {
      stuck = false;
    }
  }
}
