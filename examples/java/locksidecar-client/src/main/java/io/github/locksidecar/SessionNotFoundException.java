package io.github.locksidecar;

import java.util.Map;

/** The session has ended, and all that it held is gone ({@code SESSION_NOT_FOUND}). */
public final class SessionNotFoundException extends SidecarException {
  private static final long serialVersionUID = 1;

  SessionNotFoundException(String message, Map<String, String> metadata, Throwable cause) {
    super("SESSION_NOT_FOUND", message, metadata, cause);
  }
}
