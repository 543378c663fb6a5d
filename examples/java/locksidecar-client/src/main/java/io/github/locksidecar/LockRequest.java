package io.github.locksidecar;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;

/** What is asked for. It does not change once it was made. */
final class LockRequest implements Cloneable {
  private static final Duration LONGEST = Duration.ofHours(24);

  /** Longer than anything that the sidecar takes; what the limit is, it tells itself. */
  private static final int MAX_STRING = 4096;

  private final List<String> resources;
  private LockMode mode;
  private Duration patience; // how long to wait; null: for ever; zero: try once
  private Duration maxHold; // null: the hold does not end by itself
  private Duration minHold; // null: others are kept out only while it is held
  private String owner = ""; // who asks
  private boolean reentrant; // the owner may enter again what it has entered so
  private int limit; // how many permits there are; 0: it is no permit
  private boolean detachable; // the hold may be detached
  private String handle; // in place of resources and mode: attach what it names; else null
  private Once once; // it is an attempt at something that is done once; else null

  LockRequest(List<String> resources, LockMode mode) {
    this.resources = List.copyOf(resources);
    this.mode = mode;
    this.resources.forEach(r -> check("resource", r));
  }

  /** A request for what was detached. */
  static LockRequest attaching(String handle) {
    return new LockRequest(List.of(), null).but(q -> q.handle = checkHandle(handle)).waiting(Duration.ZERO);
  }

  boolean attaches() {
    return handle != null;
  }

  /** A handle that the app gave; messages do not show it. */
  static String checkHandle(String handle) {
    Objects.requireNonNull(handle, "handle must not be null");
    if (handle.isEmpty()) {
      throw SidecarException.invalid("handle", "handle is empty");
    }
    return check("handle", handle);
  }

  /** Refuses what cannot be sent, or would lock another name than the app's. */
  static String check(String field, String v) {
    if (v.length() > MAX_STRING) {
      throw SidecarException.invalid(field, field + " is " + v.length() + " characters long");
    }
    if (!StandardCharsets.UTF_8.newEncoder().canEncode(v)) {
      throw SidecarException.invalid(field, field + " has half of a surrogate pair, which is no character");
    }
    return v;
  }

  private LockRequest but(Consumer<LockRequest> change) {
    try {
      LockRequest copy = (LockRequest) clone();
      change.accept(copy);
      return copy;
    } catch (CloneNotSupportedException e) {
      throw new AssertionError(e);
    }
  }

  /** The same with a wait: one that is longer than the sidecar allows is for ever, or nearly. */
  LockRequest waiting(Duration w) {
    Duration bounded = w.isNegative() ? Duration.ZERO : w.compareTo(LONGEST) > 0 ? LONGEST : w;
    return but(q -> q.patience = bounded);
  }

  LockRequest ownedBy(String label) {
    check("owner", label);
    return but(q -> q.owner = label);
  }

  LockRequest lasting(Duration time) {
    return but(q -> q.maxHold = time);
  }

  LockRequest keptFor(Duration time) {
    return but(q -> q.minHold = time);
  }

  LockRequest leaving() {
    return but(q -> q.detachable = true);
  }

  LockRequest reentering() {
    return but(q -> q.reentrant = true);
  }

  LockRequest limited(int permits) {
    return but(
        q -> {
          q.limit = permits;
          q.mode = LockMode.PERMIT;
        });
  }

  LockRequest onlyOnce(Once how) {
    return but(q -> q.once = how);
  }

  /** What is locked; of several, their names with commas. */
  String resource() {
    return String.join(", ", resources);
  }

  List<String> resources() {
    return resources;
  }

  LockMode mode() {
    return mode;
  }

  Duration maxHold() {
    return maxHold;
  }

  /** How many nanoseconds to wait; 0: it is a try, or waits for ever. */
  long patience() {
    return patience == null ? 0 : patience.toNanos();
  }

  boolean isTry() {
    return patience != null && patience.isZero();
  }

  boolean reentrant() {
    return reentrant;
  }

  /** After how many nanoseconds the answer is overdue; 0: never. */
  long overdueAfter() {
    return patience == null ? 0 : patience.toNanos() + Core.OVERDUE;
  }

  Json body() {
    Json b = new Json();
    if (handle != null) { // it is there, or it is not
      return b.with("handle", handle).with("owner", owner).with("wait", Times.format(patience));
    }
    if (resources.size() == 1) {
      b.with("resource", resources.get(0));
    } else {
      b.with("resources", resources);
    }
    b.with("mode", mode.name()).with("owner", owner);
    if (reentrant) {
      b.with("reentrant", true);
    }
    if (limit != 0) {
      b.with("limit", limit);
    }
    if (patience != null) {
      b.with("wait", Times.format(patience));
    }
    if (maxHold != null) {
      b.with("maxHold", Times.format(maxHold));
    }
    if (minHold != null) {
      b.with("minHold", Times.format(minHold));
    }
    if (detachable) {
      b.with("detachable", true);
    }
    return once == null ? b : b.with("once", once.body());
  }
}
