package io.github.locksidecar;

import java.util.Map;

/** The sidecar has ended the wait because somebody cancelled it ({@code CANCELLED}). */
public final class CancelledException extends SidecarException {
  private static final long serialVersionUID = 1;

  CancelledException(String message, Map<String, String> metadata, Throwable cause) {
    super("CANCELLED", message, metadata, cause);
  }
}
