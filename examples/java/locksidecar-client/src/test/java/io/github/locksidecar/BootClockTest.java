package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

class BootClockTest {
  @Test
  void readsUptime() throws IOException {
    assertEquals(12_769_900_000_000L, BootClock.parseUptime("12769.90 14202.08\n"));
    assertEquals(50_000_000L, BootClock.parseUptime("0.05 0.00\n"));
    for (String bad : new String[] {"", "\n", "12 13\n", "12.5 13\n", ".05 1\n", "x.yz 1\n", "12.34"}) {
      assertThrows(IOException.class, () -> BootClock.parseUptime(bad), bad);
    }
  }

  @Test
  void theMachinesClockAdvances() {
    BootClock c = BootClock.system();
    long least = c.atLeast();
    long most = c.atMost();
    assertTrue(least <= most, least + " " + most);
    assertTrue(most - least < 1_000_000_000L, "bounds are " + (most - least) + " ns apart");
    TestSidecar.pause(30);
    assertTrue(c.atLeast() >= least + 30_000_000, "it stands still");
  }

  /** nanoTime stands still while the machine is suspended; uptime goes on. */
  @Test
  void aSuspendCounts() {
    AtomicLong uptime = new AtomicLong(100_000_000_000L);
    AtomicLong nano = new AtomicLong(5);
    BootClock c = new BootClock(uptime::get, nano::get);
    assertEquals(uptime.get() - BootClock.STEP, c.atLeast());
    assertEquals(uptime.get() + BootClock.STEP, c.atMost());
    uptime.addAndGet(3_600_000_000_000L);
    assertEquals(uptime.get() + BootClock.STEP, c.atMost());
    assertEquals(uptime.get() - BootClock.STEP, c.atLeast());
  }

  /** Whatever comes between the two readings, the lower bound stays one. */
  @Test
  void theLowerBoundIsOne() {
    AtomicLong now = new AtomicLong(1_000_000_000L);
    BootClock c =
        new BootClock(() -> now.getAndAdd(7_777_777) / 10_000_000 * 10_000_000, now::get);
    for (int i = 0; i < 1000; i++) {
      assertTrue(c.atMost() >= now.get() - 7_777_777);
      assertTrue(c.atLeast() <= now.get());
      now.addAndGet(3_333_333);
    }
  }

  @Test
  void whoCannotTellTheTimeHasNoLock() {
    BootClock c = new BootClock(() -> { throw new UncheckedIOException(new IOException("gone")); }, () -> 0);
    assertEquals(Long.MAX_VALUE, c.atMost());
  }
}
