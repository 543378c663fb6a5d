package io.github.locksidecar;

import java.util.Map;

/** The lock was tried once and is not free ({@code LOCK_HELD}). The metadata name the holder. */
public final class LockHeldException extends SidecarException {
  private static final long serialVersionUID = 1;

  LockHeldException(String message, Map<String, String> metadata, Throwable cause) {
    super("LOCK_HELD", message, metadata, cause);
  }
}
