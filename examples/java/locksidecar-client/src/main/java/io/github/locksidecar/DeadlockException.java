package io.github.locksidecar;

import java.util.Map;

/**
 * Owners wait for each other, and this one asked last ({@code DEADLOCK}); the message says who
 * waits for whom. It keeps what it holds: let go and start over.
 */
public final class DeadlockException extends SidecarException {
  private static final long serialVersionUID = 1;

  DeadlockException(String message, Map<String, String> metadata, Throwable cause) {
    super("DEADLOCK", message, metadata, cause);
  }
}
