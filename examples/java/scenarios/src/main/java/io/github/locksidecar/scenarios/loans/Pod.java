package io.github.locksidecar.scenarios.loans;

import java.io.BufferedReader;
import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** An app's process and its sidecar's, which live and are paused together. */
final class Pod implements AutoCloseable {
  private static final String END = "(end of its output)";

  private final String name;
  private final Path dir;
  private final Process sidecar;
  private final Process app;
  private final Thread reader;
  private final BlockingQueue<String> lines = new LinkedBlockingQueue<>();

  /** Starts both; returns when the sidecar answers. */
  Pod(String name, List<String> serve, List<String> command) throws IOException, InterruptedException {
    this.name = name;
    this.dir = Files.createTempDirectory("loan");
    Path socket = dir.resolve("s");
    List<String> sidecarCommand = new ArrayList<>(serve);
    sidecarCommand.addAll(List.of("--name", name, "--socket", socket.toString()));
    this.sidecar = new ProcessBuilder(sidecarCommand).redirectErrorStream(true).redirectOutput(dir.resolve("log").toFile()).start();
    awaitSocket(socket);
    ProcessBuilder b = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT);
    b.environment().put("LOCKSIDECAR_SOCKET", socket.toString());
    this.app = b.start();
    this.reader = new Thread(this::read, name);
    reader.start();
  }

  private void awaitSocket(Path socket) throws IOException, InterruptedException {
    for (int i = 0; ; i++) {
      try (SocketChannel c = SocketChannel.open(UnixDomainSocketAddress.of(socket))) {
        return;
      } catch (IOException e) {
        if (i == 2000 || !sidecar.isAlive()) {
          String log = Files.readString(dir.resolve("log")).strip();
          close();
          throw new IOException("the sidecar of " + name + " does not start: " + log, e);
        }
        Thread.sleep(10);
      }
    }
  }

  private void read() {
    try (BufferedReader r = app.inputReader()) {
      for (String line = r.readLine(); line != null; line = r.readLine()) {
        lines.add(line);
      }
    } catch (IOException e) {
      // it was ended
    }
    lines.add(END);
  }

  /** Waits for a line that begins so, and prints those before it. */
  String await(String... beginnings) throws InterruptedException {
    while (true) {
      String line = lines.poll(60, TimeUnit.SECONDS);
      if (line == null || line.equals(END)) {
        throw new IllegalStateException(name + " did not say " + String.join(", or ", beginnings));
      }
      for (String beginning : beginnings) {
        if (line.startsWith(beginning)) {
          return line;
        }
      }
      System.out.println(name + ": " + line);
    }
  }

  /** Both stand still, as when a machine is suspended or a virtual machine moved. */
  void freeze() throws IOException, InterruptedException {
    signal("-STOP");
  }

  /** Both go on. */
  void thaw() throws IOException, InterruptedException {
    signal("-CONT");
  }

  private void signal(String signal) throws IOException, InterruptedException {
    int status =
        new ProcessBuilder("kill", signal, Long.toString(app.pid()), Long.toString(sidecar.pid())).start().waitFor();
    if (status != 0) {
      throw new IOException("kill " + signal + ": status " + status);
    }
  }

  /** Ends the work of the app, and waits for it. */
  void finish() throws IOException, InterruptedException {
    app.getOutputStream().close();
    await("done");
    end();
  }

  /** Waits for the app's end. */
  void end() throws InterruptedException {
    int status = app.waitFor();
    if (status != 0) {
      throw new IllegalStateException(name + " ended with status " + status);
    }
  }

  @Override
  public void close() throws IOException {
    for (Process p : new Process[] {app, sidecar}) {
      if (p != null) {
        p.destroyForcibly();
        p.onExit().join();
      }
    }
    try (var files = Files.list(dir)) {
      for (Path f : files.toList()) {
        Files.delete(f);
      }
    }
    Files.delete(dir);
  }
}
