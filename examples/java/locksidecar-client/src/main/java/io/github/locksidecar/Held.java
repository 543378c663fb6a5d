package io.github.locksidecar;

import java.util.ArrayList;
import java.util.List;

/**
 * One lock that the sidecar holds for this process, however many times it was acquired. What is not
 * final is guarded by the session's mu.
 */
final class Held {
  final String id;
  final String resource;
  final long fence;

  LockMode mode;
  Guard guard;

  /** How many times it must be released. */
  int count;

  /** When its first grant was counted, on the sidecar's clock. */
  final long counted;

  /** Its end as its grants said, and news that were counted after the first; on our clock. */
  long until;

  /** The end by maxHold; 0: none. */
  long limit;

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

  Held(String id, String resource, long fence, long counted) {
    this.id = id;
    this.resource = resource;
    this.fence = fence;
    this.counted = counted;
  }
}
