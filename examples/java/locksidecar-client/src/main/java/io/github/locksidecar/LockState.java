package io.github.locksidecar;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;

/**
 * Who holds a resource, and who waits for it, everywhere.
 *
 * @param waiters in the order in which they will be served
 */
public record LockState(String resource, List<Holder> holders, List<Holder> waiters) {
  /** Tells whether an app has it. A sidecar that has it parked gives it to whoever asks. */
  public boolean isHeld() {
    return holders.stream().anyMatch(h -> !h.parked());
  }

  /**
   * One who holds or waits.
   *
   * @param since by the sidecar's wall clock
   * @param age the same as a duration, by the store's clock
   * @param session the name of its session
   * @param sessionRef the same for all that its session holds and waits for; it opens nothing
   * @param owner who in the app
   * @param revoked a forced release is under way
   * @param parked no app has it
   * @param limit of a permit: how many there are; else empty
   * @param slot of a permit that is held: which one; else empty
   */
  public record Holder(
      String lockId,
      LockMode mode,
      long fence,
      Instant since,
      Duration age,
      String sidecar,
      int pid,
      int uid,
      String session,
      String sessionRef,
      String owner,
      Map<String, String> metadata,
      boolean revoked,
      boolean parked,
      OptionalInt limit,
      OptionalInt slot) {
    static Holder read(Json j) {
      return new Holder(
          j.text("lockId"),
          LockMode.valueOf(j.text("mode")),
          j.number("fence"),
          Instant.parse(j.text("since")),
          Duration.ofNanos(j.nanos("age")),
          j.text("sidecar"),
          (int) j.number("pid"),
          (int) j.number("uid"),
          j.text("session"),
          j.text("sessionRef"),
          j.text("owner"),
          Map.copyOf(j.textMap("metadata")),
          j.flag("revoked"),
          j.flag("parked"),
          optional(j, "limit"),
          optional(j, "slot"));
    }

    static OptionalInt optional(Json j, String name) {
      return j.has(name) ? OptionalInt.of((int) j.number(name)) : OptionalInt.empty();
    }
  }

  static LockState read(Json j) {
    return new LockState(
        j.text("resource"),
        j.objects("holders").stream().map(Holder::read).toList(),
        j.objects("waiters").stream().map(Holder::read).toList());
  }
}
