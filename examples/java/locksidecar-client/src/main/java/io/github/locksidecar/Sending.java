package io.github.locksidecar;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.concurrent.locks.ReentrantLock;

/** Writes what a session has to send. Nobody waits for a sidecar that does not read. */
final class Sending {
  private final Core core;
  private final SocketChannel channel;
  private final Selector selector;

  /** Taken to write, and never while the session's mu is held. Who finds it taken leaves his line to who has it. */
  private final ReentrantLock mine = new ReentrantLock();

  private ByteBuffer unsent = ByteBuffer.allocate(0); // guarded by mine
  private volatile long sent; // how many bytes; written by who has mine
  private volatile boolean full; // the sidecar does not read for now, or the connection is broken

  Sending(Core core, SocketChannel channel, Selector selector) {
    this.core = core;
    this.channel = channel;
    this.selector = selector;
  }

  /** How many bytes the kernel has. */
  long sent() {
    return sent;
  }

  /** Writes what is to be sent. Who comes meanwhile adds to what the first one writes next. */
  void flush() {
    while (core.hasOutput() && !full && mine.tryLock()) {
      try {
        write();
      } finally {
        mine.unlock();
      }
    }
  }

  /** Writes as much as the sidecar takes. mine is held. */
  private void write() {
    try {
      while (true) {
        if (!unsent.hasRemaining()) {
          if (!core.hasOutput()) {
            return;
          }
          core.mu.lock();
          try {
            unsent = ByteBuffer.wrap(core.output());
          } finally {
            core.mu.unlock();
          }
        }
        int n = channel.write(unsent);
        sent += n;
        if (n == 0) {
          full = true;
          channel.keyFor(selector).interestOpsOr(SelectionKey.OP_WRITE);
          selector.wakeup();
          return;
        }
      }
    } catch (IOException | RuntimeException e) {
      full = true; // it is broken or closed, which the thread that reads sees
    }
  }

  /** Is called by who has waited: where the sidecar reads again, the rest goes out. */
  void goOn() {
    if (!full) {
      return;
    }
    SelectionKey key = channel.keyFor(selector);
    if ((key.readyOps() & SelectionKey.OP_WRITE) == 0) {
      return;
    }
    mine.lock();
    try {
      key.interestOps(SelectionKey.OP_READ);
      full = false;
      write();
    } finally {
      mine.unlock();
    }
  }
}
