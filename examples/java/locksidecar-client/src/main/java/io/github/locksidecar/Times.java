package io.github.locksidecar;

import java.time.Duration;
import java.util.Locale;

/** Durations as the API's JSON has them. */
final class Times {
  private static final long SECOND = 1_000_000_000L;

  /** Longer than anything that the sidecar takes. Beyond it Java's arithmetic overflows. */
  private static final Duration LONGEST = Duration.ofDays(1_000_000);

  private Times() {}

  private static Duration atLeast(Duration d, Duration least) {
    return d.compareTo(least) < 0 ? least : d;
  }

  static Duration atMost(Duration d, Duration most) {
    return d.compareTo(most) > 0 ? most : d;
  }

  /** Such as {@code "0.500000000s"}. */
  static String format(Duration d) {
    boolean negative = d.isNegative();
    Duration size = negative ? atLeast(d, LONGEST.negated()).negated() : d;
    // Without a locale: many have digits of their own.
    return String.format(Locale.ROOT, "%s%d.%09ds", negative ? "-" : "", size.getSeconds(), size.getNano());
  }

  /**
   * Nanoseconds.
   *
   * @throws IllegalArgumentException it is no duration
   */
  static long parse(String s) {
    int dot = s.indexOf('.');
    int end = s.length() - 1;
    if (end < 1 || s.charAt(end) != 's' || dot >= 0 && end - dot > 10) {
      throw new IllegalArgumentException("no duration: " + s);
    }
    long whole = Math.multiplyExact(Long.parseLong(s, 0, dot < 0 ? end : dot, 10), SECOND);
    if (dot < 0) {
      return whole;
    }
    long part = dot + 1 == end ? 0 : Long.parseLong(s, dot + 1, end, 10);
    for (int digits = end - dot - 1; digits < 9; digits++) {
      part *= 10;
    }
    return s.charAt(0) == '-' ? whole - part : whole + part;
  }

  /** A Duration in nanoseconds, or the longest that there is. */
  static long nanos(Duration d) {
    try {
      return d.toNanos();
    } catch (ArithmeticException e) {
      return Long.MAX_VALUE / 4;
    }
  }
}
