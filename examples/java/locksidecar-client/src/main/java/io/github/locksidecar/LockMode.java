package io.github.locksidecar;

/** How a resource is locked. */
public enum LockMode {
  /** Alone. */
  EXCLUSIVE,
  /** Beside other shared holds. */
  SHARED,
  /** As one of so many: see {@link SidecarLock#withLimit}. */
  PERMIT
}
