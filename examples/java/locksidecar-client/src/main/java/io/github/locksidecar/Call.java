package io.github.locksidecar;

import java.util.concurrent.CompletableFuture;
import locksidecar.v1.Locksidecar.SessionResponse;

/** A request in flight. All but the answer is guarded by the session's mu. */
final class Call {
  /**
   * Gets the answer, or the exception that the session ended with. It is completed by the thread
   * that does the input and output: whoever hangs code on it does so with an executor.
   */
  final CompletableFuture<SessionResponse> answer = new CompletableFuture<>();

  /** Not 0 where the request asks for a lock that ends by itself. */
  final long maxHold;

  /** What is asked to be released; null for other requests. */
  final Held releases;

  final boolean acquires;

  String id;
  long sent;

  /** What the grant has made. */
  Held held;

  /** Nobody wants the lock any more. */
  boolean abandoned;

  private Call(boolean acquires, long maxHold, Held releases) {
    this.acquires = acquires;
    this.maxHold = maxHold;
    this.releases = releases;
  }

  static Call plain() {
    return new Call(false, 0, null);
  }

  static Call acquiring(long maxHold) {
    return new Call(true, maxHold, null);
  }

  static Call releasing(Held held) {
    return new Call(false, 0, held);
  }
}
