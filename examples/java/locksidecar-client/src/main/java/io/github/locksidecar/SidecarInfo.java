package io.github.locksidecar;

import java.time.Duration;

/**
 * The sidecar itself.
 *
 * @param sidecar its name
 * @param store its URL, without secrets
 * @param ready whether locks can be granted
 * @param notReadyBecause empty where it is ready
 * @param jeopardy the store does not answer
 * @param draining it is about to stop
 */
public record SidecarInfo(
    String version,
    String sidecar,
    String store,
    String namespace,
    boolean ready,
    String notReadyBecause,
    Duration leaseTtl,
    boolean jeopardy,
    boolean draining,
    int sessions,
    int holds,
    int waiters,
    Duration uptime) {
  static SidecarInfo read(Json j) {
    return new SidecarInfo(
        j.text("version"),
        j.text("sidecar"),
        j.text("store"),
        j.text("namespace"),
        j.flag("ready"),
        j.text("notReadyBecause"),
        Duration.ofNanos(j.nanos("leaseTtl")),
        j.flag("jeopardy"),
        j.flag("draining"),
        (int) j.number("sessions"),
        (int) j.number("holds"),
        (int) j.number("waiters"),
        Duration.ofNanos(j.nanos("uptime")));
  }
}
