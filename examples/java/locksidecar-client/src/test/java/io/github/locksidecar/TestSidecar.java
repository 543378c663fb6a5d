package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.fail;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.URLEncoder;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.BooleanSupplier;

/** A real sidecar, as a process of its own. */
public final class TestSidecar implements AutoCloseable {
  /** How long a test waits for what must come. */
  static final Duration PATIENCE = Duration.ofSeconds(60);

  /** Where it is. */
  public final Path socket;
  private final Path dir;
  private final List<String> command = new ArrayList<>();
  private Process process;

  private TestSidecar(Path dir, String... flags) {
    this.dir = dir;
    this.socket = dir.resolve("s"); // short enough for a socket's path
    command.addAll(List.of(binary(), "serve", "--socket", socket.toString(), "--log-level", "off"));
    command.addAll(Arrays.asList(flags));
  }

  /** One on the embedded store. */
  public static TestSidecar start(String... flags) {
    try {
      TestSidecar s = new TestSidecar(Files.createTempDirectory("lsj"), flags);
      s.restart();
      return s;
    } catch (IOException e) {
      throw new AssertionError(e);
    }
  }

  static String binary() {
    String named = System.getenv("LOCKSIDECAR_BINARY");
    Path path = Path.of(named != null && !named.isEmpty() ? named : "../../../bin/locksidecar");
    if (!Files.isExecutable(path)) {
      fail("there is no program at " + path.toAbsolutePath().normalize() + ": make build, or set LOCKSIDECAR_BINARY");
    }
    return path.toString();
  }

  /** Starts it again after a kill. */
  void restart() throws IOException {
    process =
        new ProcessBuilder(command)
            .redirectOutput(ProcessBuilder.Redirect.DISCARD)
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
    eventually("ready", () -> process.isAlive() && Files.exists(socket) && info().flag("ready"));
  }

  /** A client whose session is open. */
  LockSidecar connect() {
    LockSidecar locks = LockSidecar.connect(socket);
    try {
      return locks.open();
    } catch (RuntimeException e) {
      locks.close();
      throw e;
    }
  }

  /** Stops it. When this returns, none of its threads works any more. */
  void freeze() {
    signal("-STOP");
    Path tasks = Path.of("/proc", Long.toString(process.pid()), "task");
    eventually("frozen", () -> {
      try (var threads = Files.list(tasks)) {
        return threads.allMatch(TestSidecar::isStopped);
      } catch (IOException e) {
        throw new AssertionError(e);
      }
    });
  }

  private static boolean isStopped(Path thread) {
    try {
      String stat = Files.readString(thread.resolve("stat"));
      return stat.charAt(stat.lastIndexOf(')') + 2) == 'T';
    } catch (IOException e) {
      return true; // it has ended
    }
  }

  void thaw() {
    signal("-CONT");
  }

  /** kill -9. */
  public void kill() {
    process.destroyForcibly();
    process.onExit().join();
  }

  /** Asks it to stop, and does not wait. */
  void terminate() {
    process.destroy();
  }

  /** Waits for its end. */
  void ended(Duration within) {
    eventually("ended", within, () -> !process.isAlive());
  }

  void signal(String signal) {
    try {
      assertEquals(0, new ProcessBuilder("kill", signal, Long.toString(process.pid())).start().waitFor());
    } catch (IOException | InterruptedException e) {
      throw new AssertionError(e);
    }
  }

  @Override
  public void close() {
    kill();
    try (var files = Files.list(dir)) {
      for (Path f : files.toList()) {
        Files.delete(f);
      }
      Files.delete(dir);
    } catch (IOException e) {
      throw new AssertionError(e);
    }
  }

  // --- what it says of itself, over HTTP

  Json info() {
    return http("GET", "/v1/info");
  }

  int holds() {
    return (int) info().number("holds");
  }

  int waiters() {
    return (int) info().number("waiters");
  }

  /** Takes a lock from its holder. */
  void force(String resource, String grace) {
    Json answer = http("DELETE", "/v1/locks/" + encode(resource) + "?grace=" + grace);
    assertEquals(1, answer.list("lockIds").size());
  }

  /** Who holds a resource and who waits for it. A parked lock has no holder: no app has it. */
  Json lock(String resource) {
    Json lock = http("GET", "/v1/locks/" + encode(resource));
    return lock.with("holders", lock.objects("holders").stream().filter(h -> !h.flag("parked")).toList());
  }

  /** A resource in a path: its slashes stand for themselves. */
  private static String encode(String resource) {
    return URLEncoder.encode(resource, StandardCharsets.UTF_8).replace("+", "%20").replace("%2F", "/");
  }

  private Json http(String method, String path) {
    try (SocketChannel c = SocketChannel.open(UnixDomainSocketAddress.of(socket))) {
      c.write(StandardCharsets.UTF_8.encode(method + " " + path + " HTTP/1.0\r\nHost: locksidecar\r\n\r\n"));
      ByteArrayOutputStream all = new ByteArrayOutputStream();
      ByteBuffer b = ByteBuffer.allocate(1 << 16);
      while (c.read(b) >= 0) {
        all.write(b.array(), 0, b.position());
        b.clear();
      }
      String answer = all.toString(StandardCharsets.UTF_8);
      return Json.parse(answer.substring(answer.indexOf("\r\n\r\n") + 4));
    } catch (IOException e) {
      return new Json();
    }
  }

  /** Waits for what must come. */
  public static void eventually(String what, BooleanSupplier is) {
    eventually(what, PATIENCE, is);
  }

  static void eventually(String what, Duration within, BooleanSupplier is) {
    for (long end = System.nanoTime() + within.toNanos(); !is.getAsBoolean(); ) {
      if (System.nanoTime() > end) {
        fail("not " + what + " in time");
      }
      pause(2);
    }
  }

  static void pause(long millis) {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
  }

  /** This process is about to stand still, and all its threads, for so many milliseconds. */
  static Process stopThisProcess(long time) throws IOException {
    long pid = ProcessHandle.current().pid();
    String command = "sleep 0.2; kill -STOP " + pid + "; sleep " + time / 1000.0 + "; kill -CONT " + pid;
    return new ProcessBuilder("sh", "-c", command).start();
  }
}
