package io.github.locksidecar;

import java.util.Map;

/**
 * No sidecar answers. The reason is one of this client's own: {@code NO_SIDECAR} (nothing is at the
 * socket; the message says which path was tried and how to start one), {@code SIDECAR_GONE} (the
 * connection ended), {@code SIDECAR_SILENT} (the answer is long overdue), {@code SESSION_CLOSED}
 * (by this program).
 */
public final class SidecarUnavailableException extends SidecarException {
  private static final long serialVersionUID = 2;

  /** It may help to call again: the sidecar is there, and has hung up, or takes no calls for now. */
  final transient boolean passes;

  SidecarUnavailableException(String reason, String message, Throwable cause) {
    this(reason, message, cause, false);
  }

  SidecarUnavailableException(String reason, String message, Throwable cause, boolean passes) {
    super(reason, message, Map.of(), cause);
    this.passes = passes;
  }

  static SidecarUnavailableException silent(String what) {
    return new SidecarUnavailableException(Loss.SILENT, what + " does not answer: it may be frozen", null);
  }

  @Override
  SidecarException again() {
    return new SidecarUnavailableException(reason(), getMessage(), this, passes);
  }
}
