package io.github.locksidecar;

import java.util.concurrent.locks.ReadWriteLock;

/**
 * A distributed lock for many readers or one writer. A writer that waits blocks later readers, so
 * that nobody starves.
 *
 * <p>It is not reentrant, unlike {@link java.util.concurrent.locks.ReentrantReadWriteLock}: a thread
 * that has one of the two and asks for the other waits for itself. {@link #reentrant} gives one that
 * is. {@link Hold#downgrade} turns writing into reading with both.
 */
public final class SidecarReadWriteLock implements ReadWriteLock {
  private final SidecarLock read;
  private final SidecarLock write;

  SidecarReadWriteLock(SidecarLock read, SidecarLock write) {
    this.read = read;
    this.write = write;
  }

  /**
   * The same lock, and reentrant, as {@link SidecarLock#reentrant} says. A thread that has the write
   * lock may take the read lock and then unlock the write lock: that downgrades without letting go.
   * The way back is refused with {@link UpgradeRefusedException}.
   */
  public SidecarReadWriteLock reentrant() {
    return new SidecarReadWriteLock(read.reentrant(), write.reentrant());
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
