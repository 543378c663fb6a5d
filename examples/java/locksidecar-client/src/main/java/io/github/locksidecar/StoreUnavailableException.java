package io.github.locksidecar;

import java.util.Map;

/**
 * The sidecar answers, and its store does not, or must not grant yet ({@code STORE_UNAVAILABLE}).
 * Try again with a pause.
 */
public sealed class StoreUnavailableException extends SidecarException permits IncompleteException {
  private static final long serialVersionUID = 1;

  StoreUnavailableException(String message, Map<String, String> metadata, Throwable cause) {
    super("STORE_UNAVAILABLE", message, metadata, cause);
  }
}
