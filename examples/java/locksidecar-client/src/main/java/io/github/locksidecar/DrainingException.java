package io.github.locksidecar;

import java.util.Map;

/** The sidecar is about to stop, and opens no sessions ({@code DRAINING}). Try again when the next is up. */
public final class DrainingException extends SidecarException {
  private static final long serialVersionUID = 1;

  DrainingException(String message, Map<String, String> metadata, Throwable cause) {
    super("DRAINING", message, metadata, cause);
  }
}
