package io.github.locksidecar;

import java.util.List;
import java.util.Optional;

/**
 * What a watch has seen.
 *
 * @param lock as it is now; empty with {@link Kind#SYNCED} and {@link Kind#MISSING}
 * @param missingShards with {@link Kind#MISSING}: their names; none: all shards answer again
 */
public record LockChange(Kind kind, Optional<LockState> lock, List<String> missingShards) {
  /** What has happened. */
  public enum Kind {
    /** It was there when the watch began. */
    CURRENT,
    /** It is new, or its holders or waiters have changed. */
    CHANGED,
    /** Nobody holds it or waits for it any more. */
    FREE,
    /** All that was there has been told. */
    SYNCED,
    /** Other shards of the store do not answer than before. What they have stays as it was seen last. */
    MISSING
  }

  static LockChange read(Json j) {
    Optional<LockState> lock = Optional.ofNullable(j.object("lock")).map(LockState::read);
    return new LockChange(Kind.valueOf(j.text("kind")), lock, j.texts("missingShards"));
  }
}
