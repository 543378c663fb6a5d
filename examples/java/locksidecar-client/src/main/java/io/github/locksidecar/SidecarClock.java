package io.github.locksidecar;

/**
 * Maps moments on the sidecar's clock to ours, never too late. All times are nanoseconds.
 *
 * <p>An answer was counted after its request was sent. So (our clock before the request) -
 * (countedAt) is at most the true difference of the clocks, and the largest of these found is the
 * best. With it, a message tells how old it is, even if this process was stopped before it read
 * it, or lives in another time namespace than the sidecar.
 */
final class SidecarClock {
  private long difference;
  private boolean known;

  /** Learns from one request and its answer. */
  void answered(long sent, long countedAt) {
    long d = sent - countedAt;
    if (!known || d > difference) {
      difference = d;
      known = true;
    }
  }

  /** The moment on our clock at which what was left at countedAt is over. */
  long until(long countedAt, long left) {
    return countedAt + difference + left;
  }
}
