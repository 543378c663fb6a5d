package io.github.locksidecar;

import java.util.ArrayList;
import java.util.List;
import java.util.OptionalInt;

/**
 * One lock that the sidecar holds for this process, however many times it was acquired. What is not
 * final is guarded by the session's mu.
 */
final class Held {
  final String id;
  final String resource;
  final long fence;
  final OptionalInt slot;
  final int attempt;
  final Outcome previous;
  final Guard outcomeGuard;

  /** When its first grant was counted, on the sidecar's clock. */
  final long counted;

  LockMode mode;
  Guard guard;
  List<Part> parts;

  /** How many times it must be released. */
  int count;

  /** Its end as its grants said, and news that were counted after the first; on our clock. */
  long until;

  /** The end by maxHold, or by its handle where it is attached; 0: none. */
  long limit;

  /** It has left the session so. */
  volatile boolean detached;

  /** It was asked to be detached, and that was not refused: who closes it may come too late. */
  volatile boolean detaching;

  /** Null as long as it is not lost. */
  Loss loss;

  /** Who is told of the loss. */
  final List<Listener> listeners = new ArrayList<>();

  /**
   * To be called once.
   *
   * @param hold for whom: what is released is not told
   */
  record Listener(Hold hold, Runnable call) {}

  Held(Json grant) {
    this.id = grant.text("lockId");
    update(grant);
    this.resource = parts.isEmpty() ? grant.text("resource") : String.join(", ", parts.stream().map(Part::resource).toList());
    this.fence = grant.number("fence");
    this.slot = LockState.Holder.optional(grant, "slot");
    this.attempt = (int) grant.number("attempt");
    this.previous = grant.has("previous") ? Outcome.read(grant.object("previous")) : null;
    this.outcomeGuard = Guard.read(grant.object("outcomeGuard"));
    this.counted = grant.nanos("countedAt");
  }

  /** Takes over what a later grant may say otherwise. */
  void update(Json grant) {
    mode = LockMode.valueOf(grant.text("mode"));
    guard = Guard.read(grant.object("guard"));
    parts = grant.objects("parts").stream().map(Part::read).toList();
  }
}
