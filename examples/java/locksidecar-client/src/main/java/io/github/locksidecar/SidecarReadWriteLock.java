package io.github.locksidecar;

import java.util.concurrent.locks.ReadWriteLock;

/**
 * A distributed lock for many readers or one writer. A writer that waits blocks later readers, so
 * that nobody starves. A thread that has the write lock may take the read lock and then unlock the
 * write lock: that downgrades without letting go. The way back is refused with {@link
 * UpgradeRefusedException}.
 */
public final class SidecarReadWriteLock implements ReadWriteLock {
  private final SidecarLock read;
  private final SidecarLock write;

  SidecarReadWriteLock(SidecarLock read, SidecarLock write) {
    this.read = read;
    this.write = write;
  }

  /** Beside other readers. */
  @Override
  public SidecarLock readLock() {
    return read;
  }

  /** Alone. */
  @Override
  public SidecarLock writeLock() {
    return write;
  }
}
