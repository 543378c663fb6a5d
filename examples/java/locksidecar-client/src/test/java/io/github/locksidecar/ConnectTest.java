package io.github.locksidecar;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.SocketException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
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
      SidecarException e = assertThrows(SidecarUnavailableException.class, () -> b.connect().open());
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
    assertEquals("NO_SIDECAR", assertThrows(SidecarUnavailableException.class, () -> b.connect().open()).reason());
  }

  @Test
  void theFirstLockConnects() throws Exception {
    try (TestSidecar late = TestSidecar.start()) {
      late.kill();
      try (LockSidecar locks = LockSidecar.connect(late.socket)) { // nothing is there, and nothing is asked
        assertEquals("NO_SIDECAR", assertThrows(SidecarUnavailableException.class, locks::open).reason());
        assertEquals("NO_SIDECAR", assertThrows(SidecarUnavailableException.class, () -> locks.lock("r").tryLock()).reason());
        assertEquals("NO_SIDECAR", assertThrows(SidecarUnavailableException.class, locks::info).reason());
        late.restart();
        assertEquals(0, late.info().number("sessions"));
        try (Hold hold = locks.lock("r").acquire()) {
          assertEquals(1, late.info().number("sessions"));
          locks.open(); // is open
          hold.check();
        }
      }
    }
  }

  /** A sidecar that is frozen takes calls until its queue is full, and answers none. */
  @Test
  void aFrozenSidecar() throws Exception {
    try (TestSidecar frozen = TestSidecar.start();
        LockSidecar locks = LockSidecar.builder().socket(frozen.socket).connectTimeout(Duration.ofMillis(700)).connect()) {
      frozen.freeze();
      assertEquals("SIDECAR_SILENT", assertThrows(SidecarUnavailableException.class, locks::open).reason());
      assertEquals("SIDECAR_SILENT", assertThrows(SidecarUnavailableException.class, () -> locks.lock("r").lock()).reason());
      frozen.thaw();
      try (LockSidecar well = frozen.connect()) {
        well.lock("r").lock();
        well.lock("r").unlock();
      }
    }
  }

  /** A socket on which nobody takes calls, and whose queue is full. */
  @Test
  void aFullQueue() throws Exception {
    Path dir = Files.createTempDirectory("lsq");
    UnixDomainSocketAddress at = UnixDomainSocketAddress.of(dir.resolve("s"));
    List<SocketChannel> callers = new ArrayList<>();
    try (ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
      server.bind(at, 1);
      boolean full = false;
      while (!full) {
        SocketChannel c = SocketChannel.open(StandardProtocolFamily.UNIX);
        callers.add(c);
        c.configureBlocking(false);
        try {
          full = !c.connect(at);
        } catch (SocketException e) {
          full = true;
        }
      }
      LockSidecar.Builder b = LockSidecar.builder().socket(at.getPath());
      try (LockSidecar hasty = b.connectTimeout(Duration.ofMillis(500)).connect()) {
        SidecarException e = assertThrows(SidecarUnavailableException.class, hasty::open);
        assertEquals("NO_SIDECAR", e.reason());
        assertTrue(e.getMessage().contains("may be frozen"), e.getMessage());
      }
      try (LockSidecar patient = b.connectTimeout(Duration.ofSeconds(60)).connect()) {
        CompletableFuture<Hold> asked = patient.lock("r").acquireAsync();
        Thread.sleep(100);
        assertTrue(!asked.isDone(), "it calls again");
        for (SocketChannel c : callers) {
          c.close();
        }
        // Who calls now finds room when the queue was worked off.
        SocketChannel app = server.accept();
        while (app.read(ByteBuffer.allocate(1)) < 0) {
          app.close();
          app = server.accept();
        }
        app.close();
      }
    } finally {
      Files.delete(at.getPath());
      Files.delete(dir);
    }
  }
}
