package io.github.locksidecar;

import java.util.Map;

/** It is done once, and was tried as often as it may be ({@code ATTEMPTS_EXHAUSTED}): tell a person. */
public final class AttemptsExhaustedException extends SidecarException {
  private static final long serialVersionUID = 1;

  AttemptsExhaustedException(String message, Map<String, String> metadata, Throwable cause) {
    super("ATTEMPTS_EXHAUSTED", message, metadata, cause);
  }
}
