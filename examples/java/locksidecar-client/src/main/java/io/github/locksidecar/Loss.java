package io.github.locksidecar;

import java.util.Map;

/**
 * What is known of the loss of a hold.
 *
 * @param resource of several that are held together, the one that was lost first
 * @param graceEnd on the boot-time clock, in nanoseconds
 */
record Loss(String resource, String lockId, long fence, String reason, String message, long graceEnd) {
  /** The sidecar was not heard of for as long as the hold could be relied on. */
  static final String SILENT = "SIDECAR_SILENT";

  /** The connection to the sidecar ended. */
  static final String GONE = "SIDECAR_GONE";

  /** This program closed the session. */
  static final String CLOSED = "SESSION_CLOSED";

  static Loss of(Held h, String reason, String message, long graceEnd) {
    return new Loss(h.resource, h.id, h.fence, reason, message, graceEnd);
  }

  String text() {
    return "the lock on \"" + resource + "\" is lost: " + reason + ": " + message;
  }

  Map<String, String> metadata() {
    return Map.of("resource", resource, "lock_id", lockId, "fence", Long.toString(fence), "lost_reason", reason);
  }
}
