package io.github.locksidecar;

import java.util.Map;

/**
 * No sidecar answers. The reason is one of this client's own: {@code NO_SIDECAR} (nothing is at the
 * socket; the message says which path was tried and how to start one), {@code SIDECAR_GONE} (the
 * connection ended), {@code SIDECAR_SILENT} (the answer is long overdue), {@code SESSION_CLOSED}
 * (by this program).
 */
public final class SidecarUnavailableException extends SidecarException {
  private static final long serialVersionUID = 1;

  SidecarUnavailableException(String reason, String message, Throwable cause) {
    super(reason, message, Map.of(), cause);
  }
}
