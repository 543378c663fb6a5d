package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** A session without a sidecar: what it says is written by the test, on a clock that the test moves. */
abstract class CoreScript {
  static final long S = 1_000_000_000L;
  static final long MS = 1_000_000L;

  final AtomicLong nano = new AtomicLong(50 * S);
  final BootClock clock = new BootClock(nano::get, nano::get);
  final AtomicInteger draining = new AtomicInteger();
  final Core core = new Core("/s", clock, Runnable::run, draining::incrementAndGet);

  @BeforeEach
  void open() {
    core.mu.lock();
    Call c = Call.opening(new Json());
    core.post(c);
    assertEquals(List.of("{\"requestId\":\"1\",\"open\":{}}"), sent());
    says("{'requestId':'1','opened':{'sessionId':'x','leaseTtl':'10s','leaseMargin':'1s','countedAt':'" + now() + "'}}");
    assertTrue(core.isOpened());
  }

  @AfterEach
  void close() {
    core.mu.unlock();
  }

  String now() {
    return Times.format(Duration.ofNanos(nano.get()));
  }

  void says(String... lines) {
    says(core, lines);
  }

  static void says(Core core, String... lines) {
    for (String line : lines) {
      byte[] b = (line.replace('\'', '"') + "\n").getBytes(StandardCharsets.UTF_8);
      core.feed(b, b.length);
    }
  }

  List<String> sent() {
    assertTrue(core.hasOutput());
    List<String> lines = new ArrayList<>(new String(core.output(), StandardCharsets.UTF_8).lines().toList());
    assertFalse(core.hasOutput());
    return lines;
  }

  Call acquire(Duration wait) {
    return acquire("r", wait);
  }

  Call acquire(String resource, Duration wait) {
    LockRequest q = new LockRequest(List.of(resource), LockMode.EXCLUSIVE);
    Call c = Call.acquiring(wait == null ? q : q.waiting(wait));
    core.post(c);
    return c;
  }

  void grants(Call c) {
    says(
        "{'requestId':'" + c.id + "','granted':{'lockId':'L" + c.id + "','resource':'r','mode':'EXCLUSIVE','fence':'7',"
            + "'validFor':'9s','count':1,'countedAt':'" + now() + "','parts':[]}}");
  }

  static void refuses(Core core, Call c, String reason) {
    String line =
        "{\"requestId\":\"" + c.id + "\",\"error\":{\"code\":9,\"message\":\"no\",\"details\":[{\"reason\":\"" + reason
            + "\",\"domain\":\"locksidecar\",\"metadata\":{\"lost_reason\":\"FORCED\"}}]}}\n";
    core.feed(line.getBytes(StandardCharsets.UTF_8), line.length());
  }

  static String reasonOf(Call c) {
    Throwable e = assertThrows(CompletionException.class, c.answer::join).getCause();
    return ((SidecarException) e).reason();
  }
}
