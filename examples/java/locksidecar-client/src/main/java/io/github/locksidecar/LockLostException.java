package io.github.locksidecar;

import java.time.Duration;
import java.util.Map;

/**
 * A hold is over though it was not released ({@code LOCK_LOST}). This is never undone: stop the
 * work under the lock, do not write any more, and acquire again.
 */
public final class LockLostException extends SidecarException {
  private static final long serialVersionUID = 2;

  /** On the boot-time clock of this machine; 0, where nothing is known, and elsewhere. */
  private final transient long graceEnd;

  private final transient BootClock clock;

  /** As the sidecar answers a request. */
  LockLostException(String message, Map<String, String> metadata, Throwable cause) {
    super("LOCK_LOST", message, metadata, cause);
    this.graceEnd = 0;
    this.clock = null;
  }

  LockLostException(Loss loss, BootClock clock) {
    super("LOCK_LOST", loss.text(), loss.metadata(), null);
    this.graceEnd = loss.graceEnd();
    this.clock = clock;
  }

  /**
   * Why: {@code LEASE_EXPIRED}, {@code LEASE_LOST}, {@code STORE_LOST}, {@code FORCED}, {@code
   * MAX_HOLD}, {@code SESSION_EXPIRED}, {@code STOPPING}, {@code TAKEN_OVER} as the sidecar says; {@code
   * SIDECAR_SILENT} (this client gave up by its own clock), {@code SIDECAR_GONE} (the connection
   * ended), {@code SESSION_CLOSED} (by this program) as this client does.
   */
  public String lostReason() {
    return metadata().getOrDefault("lost_reason", "");
  }

  /**
   * For how much longer others are still kept out, so that the work can be stopped. Zero where
   * nothing is known of it, and in another process. The release of the hold ends that time at once.
   */
  public Duration graceLeft() {
    return clock == null ? Duration.ZERO : Duration.ofNanos(Math.max(0, graceEnd - clock.atMost()));
  }
}
