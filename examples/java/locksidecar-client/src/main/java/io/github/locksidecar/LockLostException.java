package io.github.locksidecar;

import java.time.Duration;
import java.util.Map;

/**
 * A hold is over though it was not released ({@code LOCK_LOST}). This is never undone: stop the
 * work under the lock, do not write any more, and acquire again.
 */
public final class LockLostException extends SidecarException {
  private static final long serialVersionUID = 1;

  private final transient Loss loss;
  private final transient BootClock clock;

  /** As the sidecar answers a request. */
  LockLostException(String message, Map<String, String> metadata) {
    super("LOCK_LOST", message, metadata, null);
    this.loss = null;
    this.clock = null;
  }

  LockLostException(Loss loss, BootClock clock) {
    super(
        "LOCK_LOST",
        "the lock on \"" + loss.resource() + "\" is lost: " + loss.reason() + ": " + loss.message(),
        Map.of(
            "resource", loss.resource(),
            "lock_id", loss.lockId(),
            "fence", Long.toString(loss.fence()),
            "lost_reason", loss.reason()),
        null);
    this.loss = loss;
    this.clock = clock;
  }

  /**
   * Why: {@code LEASE_EXPIRED}, {@code LEASE_LOST}, {@code STORE_LOST}, {@code FORCED}, {@code
   * MAX_HOLD}, {@code SESSION_EXPIRED}, {@code STOPPING} as the sidecar says; {@code
   * SIDECAR_SILENT} (this client gave up by its own clock), {@code SIDECAR_GONE} (the connection
   * ended), {@code SESSION_CLOSED} (by this program) as this client does.
   */
  public String lostReason() {
    return metadata().getOrDefault("lost_reason", "");
  }

  /**
   * For how much longer others are still kept out, so that the work can be stopped. Zero where
   * nothing is known of it. The release of the hold ends that time at once.
   */
  public Duration graceLeft() {
    if (loss == null || clock == null) {
      return Duration.ZERO;
    }
    return Duration.ofNanos(Math.max(0, loss.graceEnd() - clock.atMost()));
  }
}
