package io.github.locksidecar;

import java.util.Map;

/** The wait was in vain ({@code WAIT_TIMEOUT}). The metadata name a holder and the position. */
public final class WaitTimeoutException extends SidecarException {
  private static final long serialVersionUID = 1;

  WaitTimeoutException(String message, Map<String, String> metadata, Throwable cause) {
    super("WAIT_TIMEOUT", message, metadata, cause);
  }
}
