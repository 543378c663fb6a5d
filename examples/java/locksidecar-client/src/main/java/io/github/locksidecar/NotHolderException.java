package io.github.locksidecar;

import java.util.Map;

/** The hold was released before ({@code NOT_HOLDER}). */
public final class NotHolderException extends SidecarException {
  private static final long serialVersionUID = 1;

  NotHolderException(String message, Map<String, String> metadata, Throwable cause) {
    super("NOT_HOLDER", message, metadata, cause);
  }
}
