package io.github.locksidecar;

import java.util.Optional;

/**
 * What a watch has seen.
 *
 * @param lock as it is now; empty with {@link Kind#SYNCED}
 */
public record LockChange(Kind kind, Optional<LockState> lock) {
  /** What has happened. */
  public enum Kind {
    /** It was there when the watch began. */
    CURRENT,
    /** It is new, or its holders or waiters have changed. */
    CHANGED,
    /** Nobody holds it or waits for it any more. */
    FREE,
    /** All that was there has been told. */
    SYNCED
  }

  static LockChange read(Json j) {
    return new LockChange(Kind.valueOf(j.text("kind")), Optional.ofNullable(j.object("lock")).map(LockState::read));
  }
}
