package io.github.locksidecar;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;

/**
 * What is asked for.
 *
 * @param patience how long to wait; null: for ever; zero: try once
 * @param maxHold null: the hold does not end by itself
 * @param owner who asks
 * @param reentrant the owner may enter again what it has entered so
 */
record LockRequest(
    String resource, LockMode mode, Duration patience, Duration maxHold, String owner, boolean reentrant) {
  private static final Duration LONGEST = Duration.ofHours(24);

  /** Longer than anything that the sidecar takes; what the limit is, it tells itself. */
  private static final int MAX_STRING = 4096;

  LockRequest(String resource, LockMode mode) {
    this(resource, mode, null, null, "", false);
  }

  LockRequest {
    check("resource", resource);
    check("owner", owner);
  }

  /** Refuses what would end the stream, or would lock another name than the app's. */
  private static void check(String field, String v) {
    String problem;
    if (v.length() > MAX_STRING) {
      problem = "is " + v.length() + " characters long";
    } else if (!StandardCharsets.UTF_8.newEncoder().canEncode(v)) {
      problem = "has half of a surrogate pair, which is no character";
    } else {
      return;
    }
    throw SidecarException.of("INVALID_REQUEST", field + " " + problem, Map.of("field", field));
  }

  /** The same with a wait: one that is longer than the sidecar allows is for ever, or nearly. */
  LockRequest waiting(Duration w) {
    Duration bounded = w;
    if (w != null) {
      bounded = w.isNegative() ? Duration.ZERO : w.compareTo(LONGEST) > 0 ? LONGEST : w;
    }
    return new LockRequest(resource, mode, bounded, maxHold, owner, reentrant);
  }

  LockRequest ownedBy(String label) {
    return new LockRequest(resource, mode, patience, maxHold, label, reentrant);
  }

  LockRequest lasting(Duration limit) {
    return new LockRequest(resource, mode, patience, limit, owner, reentrant);
  }

  LockRequest reentering() {
    return new LockRequest(resource, mode, patience, maxHold, owner, true);
  }

  /** After how many nanoseconds the answer is overdue; 0: never. */
  long overdue() {
    return patience == null ? 0 : patience.toNanos() + Session.OVERDUE;
  }
}
