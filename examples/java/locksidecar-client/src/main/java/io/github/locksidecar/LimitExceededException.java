package io.github.locksidecar;

import java.util.Map;

/**
 * A limit of the sidecar is reached ({@code LIMIT_EXCEEDED}). The metadata say which: {@code limit},
 * {@code max}.
 */
public final class LimitExceededException extends SidecarException {
  private static final long serialVersionUID = 1;

  LimitExceededException(String message, Map<String, String> metadata, Throwable cause) {
    super("LIMIT_EXCEEDED", message, metadata, cause);
  }
}
