package io.github.locksidecar;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.LongSupplier;

/**
 * The boot time of the machine, in nanoseconds: a clock that nobody can set and that goes on while
 * the machine is suspended.
 *
 * <p>{@link System#nanoTime} is CLOCK_MONOTONIC, which stands still in a suspend, and Java 17 has
 * no call for CLOCK_BOOTTIME. {@code /proc/uptime} is that clock, in steps of 10 ms. So its time
 * is known between two bounds, and each use takes the bound that can only end a lock too early:
 * {@link #atLeast} for the moment at which a request was sent, {@link #atMost} to see whether a
 * hold is over. Together they cost a hold about 20 ms of its time.
 */
final class BootClock {
  /** /proc/uptime is cut, or in some containers rounded, to this. */
  static final long STEP = 10_000_000;

  private final LongSupplier uptime;
  private final LongSupplier nanoTime;
  private final ReentrantLock mu = new ReentrantLock();

  /**
   * Boot time minus nanoTime is at least this. It grows by each suspend and never shrinks, so the
   * largest that was ever seen holds. Guarded by mu for writing.
   */
  private volatile long difference = Long.MIN_VALUE;

  BootClock(LongSupplier uptime, LongSupplier nanoTime) {
    this.uptime = uptime;
    this.nanoTime = nanoTime;
    atMost();
  }

  /** The clock of this machine. */
  static BootClock system() {
    return Machine.CLOCK;
  }

  /** The clock of waits: it stands still while the machine is suspended, as the sidecar does. */
  long nanoTime() {
    return nanoTime.getAsLong();
  }

  /** A moment that is not later than now. It costs no system call beside that of nanoTime. */
  long atLeast() {
    return nanoTime.getAsLong() + difference;
  }

  /** A moment that is not earlier than now. It reads a file of the kernel's: microseconds. */
  long atMost() {
    mu.lock();
    try {
      long up = uptime.getAsLong();
      // nanoTime is read after it: what passes between the two makes the difference smaller.
      difference = Math.max(difference, up - STEP - nanoTime.getAsLong());
      return up + STEP;
    } catch (UncheckedIOException e) {
      return Long.MAX_VALUE; // who cannot tell the time has no lock
    } finally {
      mu.unlock();
    }
  }

  private static final class Machine {
    static final BootClock CLOCK = open();

    private static BootClock open() {
      RandomAccessFile file;
      try {
        // Kept open: there is no lack of files to open when a lock's end has to be noticed. Not a
        // FileChannel: that closes itself when an interrupted thread reads.
        file = new RandomAccessFile("/proc/uptime", "r");
        readUptime(file);
      } catch (IOException e) {
        throw new UncheckedIOException("read the machine's boot time", e);
      }
      return new BootClock(
          () -> {
            try {
              return readUptime(file);
            } catch (IOException e) {
              throw new UncheckedIOException(e);
            }
          },
          System::nanoTime);
    }
  }

  private static long readUptime(RandomAccessFile file) throws IOException {
    byte[] text = new byte[64];
    file.seek(0);
    int n = file.read(text);
    return parseUptime(new String(text, 0, Math.max(n, 0), StandardCharsets.US_ASCII));
  }

  /** Reads {@code "12769.90 14202.08"}. */
  static long parseUptime(String text) throws IOException {
    int dot = text.indexOf('.');
    int end = text.indexOf(' ');
    try {
      if (dot > 0 && end == dot + 3) {
        return Long.parseLong(text, 0, dot, 10) * 1_000_000_000L
            + Long.parseLong(text, dot + 1, end, 10) * 10_000_000L;
      }
    } catch (NumberFormatException e) {
      // told below
    }
    throw new IOException("/proc/uptime is not understood: \"" + text.strip() + "\"");
  }
}
