package io.github.locksidecar.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.LockSidecar;
import io.github.locksidecar.LockState;
import io.github.locksidecar.SidecarUnavailableException;
import io.github.locksidecar.TestSidecar;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class SidecarLockProviderTest {
  static TestSidecar sidecar;
  static LockSidecar one;
  static LockSidecar two;

  @BeforeAll
  static void start() {
    sidecar = TestSidecar.start("--lost-grace", "100ms");
    one = LockSidecar.connect(sidecar.socket);
    two = LockSidecar.connect(sidecar.socket);
  }

  @AfterAll
  static void stop() {
    one.close();
    two.close();
    sidecar.close();
  }

  static Optional<SimpleLock> lock(LockSidecar node, String name, Duration most, Duration least) {
    return new SidecarLockProvider(node).lock(new LockConfiguration(Instant.now(), name, most, least));
  }

  @Test
  void oneAtATime() {
    Duration minute = Duration.ofMinutes(1);
    SimpleLock mine = lock(one, "a", minute, Duration.ZERO).orElseThrow();
    assertEquals(Optional.empty(), lock(one, "a", minute, Duration.ZERO));
    assertEquals(Optional.empty(), lock(two, "a", minute, Duration.ZERO));
    LockState.Holder holder = two.get("shedlock/a").holders().get(0);
    assertEquals("", holder.owner(), "it may outlast its task");
    mine.unlock();
    assertFalse(two.get("shedlock/a").isHeld(), "at once");
    SimpleLock other = lock(two, "a", Duration.ofDays(3), Duration.ZERO).orElseThrow();
    other.unlock();
  }

  @Test
  void atLeast() {
    long start = System.nanoTime();
    SimpleLock mine = lock(one, "b", Duration.ofMinutes(1), Duration.ofSeconds(1)).orElseThrow();
    mine.unlock();
    assertThrows(IllegalStateException.class, mine::unlock, "ShedLock's own rule");
    TestSidecar.eventually("free", () -> lock(two, "b", Duration.ofMinutes(1), Duration.ZERO).map(SidecarLockProviderTest::unlocked).isPresent());
    long took = System.nanoTime() - start;
    assertTrue(took >= 1_000_000_000L, "it was free after " + took + " ns");
  }

  static SimpleLock unlocked(SimpleLock lock) {
    lock.unlock();
    return lock;
  }

  @Test
  void atMost() {
    SimpleLock hangs = lock(one, "c", Duration.ofMillis(300), Duration.ZERO).orElseThrow();
    TestSidecar.eventually("free", () -> lock(two, "c", Duration.ofMillis(1), Duration.ZERO).map(SidecarLockProviderTest::unlocked).isPresent());
    hangs.unlock(); // that is logged
  }

  @Test
  void extended() {
    SimpleLock mine = lock(one, "d", Duration.ofMinutes(1), Duration.ZERO).orElseThrow();
    SimpleLock longer = mine.extend(Duration.ofMinutes(5), Duration.ZERO).orElseThrow();
    assertThrows(IllegalStateException.class, mine::unlock, "the first is over");
    assertEquals(Optional.empty(), lock(two, "d", Duration.ofMinutes(1), Duration.ZERO));
    two.forceRelease("shedlock/d", Duration.ZERO);
    TestSidecar.eventually("lost", () -> longer.extend(Duration.ofMinutes(5), Duration.ZERO).isEmpty());
  }

  @Test
  void withoutASidecarNothingRuns() {
    try (LockSidecar none = LockSidecar.connect(Path.of("/there/is/no/socket"))) {
      assertThrows(SidecarUnavailableException.class, () -> lock(none, "e", Duration.ofMinutes(1), Duration.ZERO));
    }
  }
}
