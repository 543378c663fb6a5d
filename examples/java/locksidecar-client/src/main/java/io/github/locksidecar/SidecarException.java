package io.github.locksidecar;

import java.util.Collections;
import java.util.HashMap;
import java.util.Map;

/**
 * The sidecar refused something, or cannot be asked. {@link #reason()} is stable; the message is
 * for people and may change. docs/api.md says when each reason is given and what to do. Each reason
 * has a class of its own, so that one can catch it; {@code INTERNAL}, and reasons that this client
 * does not know, have this one.
 */
public class SidecarException extends RuntimeException {
  private static final long serialVersionUID = 2;

  private final String reason;
  private final HashMap<String, String> metadata; // this class can be serialized, whatever a Map is

  SidecarException(String reason, String message, Map<String, String> metadata, Throwable cause) {
    super(message, cause);
    this.reason = reason;
    this.metadata = new HashMap<>(metadata);
  }

  /** Such as {@code LIMIT_EXCEEDED}: go by it. */
  public final String reason() {
    return reason;
  }

  /** Such as {@code holder_pid}; empty where the sidecar gave none. */
  public final Map<String, String> metadata() {
    return Collections.unmodifiableMap(metadata);
  }

  /** The same with the stack of this caller: others are told it too, or it is told twice. */
  SidecarException again() {
    return of(reason, getMessage(), metadata, this);
  }

  static SidecarException of(String reason, String message, Map<String, String> metadata) {
    return of(reason, message, metadata, null);
  }

  /** What was refused before it was sent. */
  static SidecarException invalid(String field, String message) {
    return of("INVALID_REQUEST", message, Map.of("field", field));
  }

  /** The exception for a reason. */
  static SidecarException of(String reason, String message, Map<String, String> metadata, Throwable cause) {
    return switch (reason) {
      case "LOCK_HELD" -> new LockHeldException(message, metadata, cause);
      case "WAIT_TIMEOUT" -> new WaitTimeoutException(message, metadata, cause);
      case "LOCK_LOST" -> new LockLostException(message, metadata, cause);
      case "SESSION_NOT_FOUND" -> new SessionNotFoundException(message, metadata, cause);
      case "NOT_HOLDER" -> new NotHolderException(message, metadata, cause);
      case "UPGRADE_REFUSED" -> new UpgradeRefusedException(message, metadata, cause);
      case "DEADLOCK" -> new DeadlockException(message, metadata, cause);
      case "ALREADY_DONE" -> new AlreadyDoneException(message, metadata, cause);
      case "ATTEMPTS_EXHAUSTED" -> new AttemptsExhaustedException(message, metadata, cause);
      case "UNSUPPORTED" -> new UnsupportedException(message, metadata, cause);
      case "STORE_UNAVAILABLE" -> new StoreUnavailableException(message, metadata, cause);
      case "LIMIT_EXCEEDED" -> new LimitExceededException(message, metadata, cause);
      case "INVALID_REQUEST" -> new InvalidRequestException(message, metadata, cause);
      case "PERMISSION_DENIED" -> new PermissionDeniedException(message, metadata, cause);
      case "DRAINING" -> new DrainingException(message, metadata, cause);
      case "CANCELLED" -> new CancelledException(message, metadata, cause);
      default -> new SidecarException(reason, message, metadata, cause);
    };
  }

  /** Reads an error of the API: a google.rpc.Status. */
  static SidecarException read(Json status) {
    for (Json detail : status.objects("details")) {
      if (detail.text("domain").equals("locksidecar")) {
        return of(detail.text("reason"), status.text("message"), detail.textMap("metadata"));
      }
    }
    return of("INTERNAL", status.text("message"), Map.of());
  }
}
