package io.github.locksidecar;

import java.time.Duration;
import java.util.Objects;

/**
 * Something that is to succeed only once; docs/guides/once.md says what an app does with it.
 *
 * @param keep for how long the outcome is remembered, 1 s to 400 days
 * @param maxAttempts after so many there is no other; 0: no limit
 */
public record Once(Duration keep, int maxAttempts) {
  /** Remembered for 30 days, and tried as often as it takes. */
  public static final Once DEFAULT = new Once(Duration.ofDays(30), 0);

  /** Both are needed; the sidecar says whether it takes them. */
  public Once {
    Objects.requireNonNull(keep, "keep must not be null");
  }

  Json body() {
    return new Json().with("keep", Times.format(keep)).with("maxAttempts", maxAttempts);
  }
}
