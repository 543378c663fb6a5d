package io.github.locksidecar;

import java.time.Duration;
import java.util.OptionalInt;

/**
 * A lock that lives by a time of its own in the store. Whoever has its handle has it: see {@link
 * LockSidecar#attach}.
 */
public final class Detached {
  private final String handle;
  private final String resource;
  private final LockMode mode;
  private final long fence;
  private final OptionalInt limit;
  private final BootClock clock;
  private final long until; // on the clock

  /** What came as the answer to a request that was sent at that moment of the clock. */
  Detached(Json j, BootClock clock, long sent) {
    this.handle = j.text("handle");
    this.resource = j.text("resource");
    this.mode = LockMode.valueOf(j.text("mode"));
    this.fence = j.number("fence");
    this.limit = LockState.Holder.optional(j, "limit");
    this.clock = clock;
    this.until = sent + j.nanos("validFor");
  }

  /** A password for this one lock: hand it on with the work, and do not log it. {@link #toString} does not show it. */
  public String handle() {
    return handle;
  }

  /** What is locked. */
  public String resource() {
    return resource;
  }

  /** How it is locked. */
  public LockMode mode() {
    return mode;
  }

  /** The fencing token; it stays the same when the lock is attached. */
  public long fence() {
    return fence;
  }

  /** Of a permit: how many there are. Else empty. */
  public OptionalInt limit() {
    return limit;
  }

  /**
   * How long the store keeps others out at least, unless somebody releases it. It is never too long,
   * and does not know of extensions that came later.
   */
  public Duration validFor() {
    return Duration.ofNanos(Math.max(0, until - clock.atMost()));
  }

  @Override
  public String toString() {
    return "Detached[" + resource + " " + mode + " fence=" + fence + " valid for " + validFor() + "]";
  }
}
