package io.github.locksidecar;

import java.util.Map;

/** The store cannot do that ({@code UNSUPPORTED}). */
public final class UnsupportedException extends SidecarException {
  private static final long serialVersionUID = 1;

  UnsupportedException(String message, Map<String, String> metadata, Throwable cause) {
    super("UNSUPPORTED", message, metadata, cause);
  }
}
