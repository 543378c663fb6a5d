package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A sidecar that hangs up before it has answered is called again. */
class ConnectTest {
  static TestSidecar sidecar;

  @BeforeAll
  static void start() {
    sidecar = TestSidecar.start();
  }

  @AfterAll
  static void stop() {
    sidecar.close();
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 4})
  void theFirstCallsAreHungUp(int calls) throws Exception {
    try (Relay relay = new Relay(sidecar, calls);
        LockSidecar locks = LockSidecar.connect(relay.socket);
        Hold hold = locks.lock("r").acquire()) {
      hold.check();
      assertEquals(calls, relay.hungUp.get());
    }
  }

  @Test
  void allCallsAreHungUp() throws Exception {
    try (Relay relay = new Relay(sidecar, Integer.MAX_VALUE)) {
      LockSidecar.Builder b = LockSidecar.builder().socket(relay.socket).connectTimeout(Duration.ofMillis(800));
      SidecarException e = assertThrows(SidecarUnavailableException.class, b::connect);
      assertEquals("SIDECAR_GONE", e.reason());
      assertTrue(e.getMessage().contains(relay.socket.toString()), e.getMessage());
    }
  }

  @Test
  void closeEndsTheCalls() throws Exception {
    try (Relay relay = new Relay(sidecar, 0)) {
      LockSidecar locks =
          LockSidecar.builder().socket(relay.socket).connectTimeout(Duration.ofDays(1)).connect();
      Hold hold = locks.lock("r").acquire();
      relay.hangUp();
      LossTest.lossOf(hold).get(20, SECONDS);
      CompletableFuture<Hold> asked = locks.lock("r").acquireAsync();
      TestSidecar.eventually("called again", () -> relay.hungUp.get() > 1);
      locks.close();
      Throwable e = assertThrows(Exception.class, () -> asked.get(20, SECONDS)).getCause();
      assertEquals("SESSION_CLOSED", ((SidecarException) e).reason());
    }
  }

  @Test
  void noSidecarIsToldAtOnce() {
    LockSidecar.Builder b =
        LockSidecar.builder().socket(Path.of("/there/is/no/socket")).connectTimeout(Duration.ofDays(1));
    assertEquals("NO_SIDECAR", assertThrows(SidecarUnavailableException.class, b::connect).reason());
  }
}
