package io.github.locksidecar;

import java.util.Map;

/** This user may not do that ({@code PERMISSION_DENIED}). */
public final class PermissionDeniedException extends SidecarException {
  private static final long serialVersionUID = 1;

  PermissionDeniedException(String message, Map<String, String> metadata, Throwable cause) {
    super("PERMISSION_DENIED", message, metadata, cause);
  }
}
