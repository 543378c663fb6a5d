package io.github.locksidecar;

import java.util.concurrent.CompletableFuture;

/** One request, and what came of it. All but the answer is guarded by the session's mu. */
final class Call {
  /**
   * Gets the answer, or why there is none: a SidecarException. It is completed by the thread that
   * reads: whoever hangs code on it does so with an executor.
   */
  final CompletableFuture<Json> answer = new CompletableFuture<>();

  final String kind;
  final Json body;

  /** Of an acquire; else null. */
  final LockRequest wanted;

  /** The hold that it is about; null: none. */
  final Held about;

  /** Nothing before it was sent. */
  String id = "";

  /** Of an acquire: its place among those that were asked for. */
  long order;

  /** How many bytes the session has had to send when all of this one is sent. */
  long sentAt = Long.MAX_VALUE;

  /** The session ended before it was sent: another session will do. */
  boolean unsent;

  /** When it was; by System.nanoTime. */
  long posted;

  /** On the boot-time clock, just before it was sent. */
  long sent;

  /** After how many nanoseconds the answer is overdue; 0: never. */
  final long overdueAfter;

  /** What an acquire got. */
  Held held;

  /** Nobody wants the lock any more. */
  boolean abandoned;

  private Call(String kind, Json body, LockRequest wanted, Held about, long overdueAfter) {
    this.kind = kind;
    this.body = body;
    this.wanted = wanted;
    this.about = about;
    this.overdueAfter = overdueAfter;
  }

  /** The first request. Who opens the session waits for it as long as he likes. */
  static Call opening(Json body) {
    return new Call("open", body, null, null, 0);
  }

  /** What is answered at once. */
  static Call plain(String kind, Json body) {
    return new Call(kind, body, null, null, Core.OVERDUE);
  }

  static Call about(Held held, String kind, Json fields) {
    return new Call(kind, fields.with("lockId", held.id), null, held, Core.OVERDUE);
  }

  /** Tells whether it is to get the hold of a handle. */
  boolean attaches() {
    return wanted != null && wanted.attaches();
  }

  /** Tells whether its hold is to be detached. */
  boolean detaches() {
    return kind.equals("detach");
  }

  static Call acquiring(LockRequest wanted) {
    return new Call("acquire", wanted.body(), wanted, null, wanted.overdueAfter());
  }
}
