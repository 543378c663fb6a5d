package io.github.locksidecar;

import java.util.Map;

/**
 * The sidecar refused something, or cannot be asked. {@link #reason()} is stable; the message is
 * for people and may change. docs/api.md says when each reason is given and what to do.
 */
public class SidecarException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private final String reason;
  private final transient Map<String, String> metadata;

  SidecarException(String reason, String message, Map<String, String> metadata, Throwable cause) {
    super(message, cause);
    this.reason = reason;
    this.metadata = Map.copyOf(metadata);
  }

  /** Such as {@code LIMIT_EXCEEDED}: go by it. */
  public final String reason() {
    return reason;
  }

  /** Such as {@code holder_pid}; empty where the sidecar gave none. */
  public final Map<String, String> metadata() {
    return metadata == null ? Map.of() : metadata;
  }

  /** The exception for an answer of the sidecar. */
  static SidecarException of(String reason, String message, Map<String, String> metadata) {
    return switch (reason) {
      case "LOCK_HELD" -> new LockHeldException(message, metadata);
      case "WAIT_TIMEOUT" -> new WaitTimeoutException(message, metadata);
      case "LOCK_LOST" -> new LockLostException(message, metadata);
      case "UPGRADE_REFUSED" -> new UpgradeRefusedException(message, metadata);
      case "DEADLOCK" -> new DeadlockException(message, metadata);
      case "STORE_UNAVAILABLE" -> new StoreUnavailableException(message, metadata);
      default -> new SidecarException(reason, message, metadata, null);
    };
  }
}
