package io.github.locksidecar.spring;

import io.github.locksidecar.LockSidecar;
import io.github.locksidecar.SidecarInfo;
import org.springframework.boot.health.contributor.AbstractHealthIndicator;
import org.springframework.boot.health.contributor.Health;

/**
 * Up while the sidecar can grant locks. Whether that concerns the app's own health is the app's
 * decision: a pod that is restarted loses its locks, and the store does not get well by it. So use it
 * for readiness, if at all, and not for liveness.
 */
public final class SidecarHealthIndicator extends AbstractHealthIndicator {
  private final LockSidecar sidecar;

  /** Of a sidecar. */
  public SidecarHealthIndicator(LockSidecar sidecar) {
    super("the sidecar does not answer");
    this.sidecar = sidecar;
  }

  @Override
  protected void doHealthCheck(Health.Builder health) {
    SidecarInfo info = sidecar.info();
    if (info.ready() && !info.draining()) {
      health.up();
    } else if (info.draining()) {
      health.outOfService().withDetail("because", "it is about to stop");
    } else {
      health.down().withDetail("because", info.notReadyBecause());
    }
    health.withDetail("sidecar", info.sidecar());
    health.withDetail("version", info.version());
    health.withDetail("store", info.store());
    health.withDetail("jeopardy", info.jeopardy());
  }
}
