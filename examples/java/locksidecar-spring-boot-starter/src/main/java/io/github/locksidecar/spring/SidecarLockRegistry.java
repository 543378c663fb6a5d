package io.github.locksidecar.spring;

import io.github.locksidecar.LockSidecar;
import io.github.locksidecar.SidecarLock;
import java.util.Objects;
import org.springframework.integration.support.locks.LockRegistry;

/**
 * Locks for Spring Integration: for aggregators, resequencers, leader election and code of the app. They
 * are reentrant, as Spring's own; a lock is named {@code integration/KEY}.
 */
public final class SidecarLockRegistry implements LockRegistry<SidecarLock> {
  private final LockSidecar sidecar;
  private final String prefix;

  /** Locks are named {@code integration/KEY}. */
  public SidecarLockRegistry(LockSidecar sidecar) {
    this(sidecar, "integration/");
  }

  /** Locks have names that begin with a prefix. */
  public SidecarLockRegistry(LockSidecar sidecar, String prefix) {
    this.sidecar = Objects.requireNonNull(sidecar, "sidecar must not be null");
    this.prefix = Objects.requireNonNull(prefix, "prefix must not be null");
  }

  @Override
  public SidecarLock obtain(Object key) {
    return sidecar.lock(prefix + Objects.requireNonNull(key, "key must not be null")).reentrant();
  }
}
