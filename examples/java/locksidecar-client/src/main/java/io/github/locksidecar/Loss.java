package io.github.locksidecar;

/**
 * What is known of the loss of a hold.
 *
 * @param graceEnd on the boot-time clock, in nanoseconds
 */
record Loss(String resource, String lockId, long fence, String reason, String message, long graceEnd) {
  /** The sidecar was not heard of for as long as the hold could be relied on. */
  static final String SILENT = "SIDECAR_SILENT";

  /** The connection to the sidecar ended. */
  static final String GONE = "SIDECAR_GONE";

  /** This program closed the session. */
  static final String CLOSED = "SESSION_CLOSED";
}
