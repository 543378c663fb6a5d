package io.github.locksidecar;

import java.util.Map;

/**
 * It is done once, and has succeeded before ({@code ALREADY_DONE}). The metadata have the record:
 * {@code note}, {@code at}, {@code attempt}.
 */
public final class AlreadyDoneException extends SidecarException {
  private static final long serialVersionUID = 1;

  AlreadyDoneException(String message, Map<String, String> metadata, Throwable cause) {
    super("ALREADY_DONE", message, metadata, cause);
  }
}
