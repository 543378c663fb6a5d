package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.fail;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
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
final class TestSidecar implements AutoCloseable {
  /** How long a test waits for what must come. */
  static final Duration PATIENCE = Duration.ofSeconds(20);

  final Path socket;
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
  static TestSidecar start(String... flags) {
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
    eventually("ready", () -> process.isAlive() && Files.exists(socket) && info().get("ready").getAsBoolean());
  }

  LockSidecar connect() {
    return LockSidecar.connect(socket);
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
  void kill() {
    process.destroyForcibly();
    process.onExit().join();
  }

  /** Asks it to stop, and does not wait. */
  void terminate() {
    process.destroy();
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

  JsonObject info() {
    return http("GET", "/v1/info");
  }

  int holds() {
    return info().get("holds").getAsInt();
  }

  int waiters() {
    return info().get("waiters").getAsInt();
  }

  /** Takes a lock from its holder. */
  void force(String resource, String grace) {
    JsonObject answer = http("DELETE", "/v1/locks/" + encode(resource) + "?grace=" + grace);
    assertEquals(1, answer.getAsJsonArray("lockIds").size());
  }

  /** Who holds a resource and who waits for it. A parked lock has no holder: no app has it. */
  JsonObject lock(String resource) {
    JsonObject lock = http("GET", "/v1/locks/" + encode(resource));
    JsonArray holders = new JsonArray();
    for (JsonElement h : lock.getAsJsonArray("holders")) {
      if (!h.getAsJsonObject().get("parked").getAsBoolean()) {
        holders.add(h);
      }
    }
    lock.add("holders", holders);
    return lock;
  }

  /** A resource in a path: its slashes stand for themselves. */
  private static String encode(String resource) {
    return URLEncoder.encode(resource, StandardCharsets.UTF_8).replace("+", "%20").replace("%2F", "/");
  }

  private JsonObject http(String method, String path) {
    try (SocketChannel c = SocketChannel.open(UnixDomainSocketAddress.of(socket))) {
      c.write(StandardCharsets.UTF_8.encode(method + " " + path + " HTTP/1.0\r\nHost: locksidecar\r\n\r\n"));
      ByteArrayOutputStream all = new ByteArrayOutputStream();
      ByteBuffer b = ByteBuffer.allocate(1 << 16);
      while (c.read(b) >= 0) {
        all.write(b.array(), 0, b.position());
        b.clear();
      }
      String answer = all.toString(StandardCharsets.UTF_8);
      return JsonParser.parseString(answer.substring(answer.indexOf("\r\n\r\n") + 4)).getAsJsonObject();
    } catch (IOException e) {
      JsonObject nothing = new JsonObject();
      nothing.addProperty("ready", false);
      return nothing;
    }
  }

  static void eventually(String what, BooleanSupplier is) {
    for (long end = System.nanoTime() + PATIENCE.toNanos(); !is.getAsBoolean(); ) {
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
}
