package io.github.locksidecar;

import java.util.Optional;

/**
 * Who leads: who holds a resource exclusively.
 *
 * @param value what it publishes, as metadata {@code leader} of its session
 * @param holder empty: nobody leads
 * @param candidates how many wait to lead
 */
public record Leader(String resource, String value, Optional<LockState.Holder> holder, int candidates) {
  /** Tells whether somebody does. */
  public boolean leads() {
    return holder.isPresent();
  }

  static Leader read(Json j) {
    return new Leader(
        j.text("resource"),
        j.text("value"),
        Optional.ofNullable(j.object("holder")).map(LockState.Holder::read),
        (int) j.number("candidates"));
  }
}
