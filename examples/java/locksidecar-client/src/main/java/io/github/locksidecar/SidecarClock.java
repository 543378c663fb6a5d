package io.github.locksidecar;

import com.google.protobuf.Duration;

/**
 * Maps moments on the sidecar's clock to ours, never too late.
 *
 * <p>An answer was counted after its request was sent. So (our clock before the request) -
 * (counted_at) is at most the true difference of the clocks, and the largest of these found is the
 * best. With it, a message tells how old it is, even if this process was stopped before it read
 * it, or lives in another time namespace than the sidecar.
 */
final class SidecarClock {
  private long difference;
  private boolean known;

  /** Learns from one request and its answer. */
  void answered(long sent, Duration countedAt) {
    long d = sent - nanos(countedAt);
    if (!known || d > difference) {
      difference = d;
      known = true;
    }
  }

  /** The moment on our clock at which what was left at countedAt is over. */
  long until(Duration countedAt, Duration left) {
    return nanos(countedAt) + difference + nanos(left);
  }

  static long nanos(Duration d) {
    return Math.addExact(Math.multiplyExact(d.getSeconds(), 1_000_000_000L), d.getNanos());
  }

  static Duration proto(java.time.Duration d) {
    return Duration.newBuilder().setSeconds(d.getSeconds()).setNanos(d.getNano()).build();
  }
}
