package io.github.locksidecar;

import java.time.Duration;
import java.time.Instant;
import java.util.Map;

/**
 * What became of an attempt at something that is done once.
 *
 * @param attempt which it was; 1 is the first
 * @param note what its app said in the end
 * @param at when it was recorded, by the sidecar's wall clock
 * @param age how long ago, by the store's clock
 * @param lockId of the hold under which the attempt was made, as are the rest
 */
public record Outcome(
    String resource,
    State state,
    int attempt,
    String note,
    Instant at,
    Duration age,
    String lockId,
    long fence,
    String sidecar,
    int pid,
    String session,
    String owner,
    Map<String, String> metadata) {
  /** How it ended. */
  public enum State {
    /** It is at work, or has ended without a word: ask first whether it was done. */
    UNKNOWN,
    /** Nothing was done. */
    FAILED,
    /** It is done. */
    SUCCEEDED
  }

  static Outcome read(Json j) {
    return new Outcome(
        j.text("resource"),
        State.valueOf(j.text("state")),
        (int) j.number("attempt"),
        j.text("note"),
        Instant.parse(j.text("at")),
        Duration.ofNanos(j.nanos("age")),
        j.text("lockId"),
        j.number("fence"),
        j.text("sidecar"),
        (int) j.number("pid"),
        j.text("session"),
        j.text("owner"),
        Map.copyOf(j.textMap("metadata")));
  }
}
