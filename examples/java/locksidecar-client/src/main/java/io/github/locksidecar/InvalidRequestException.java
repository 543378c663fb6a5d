package io.github.locksidecar;

import java.util.Map;

/** What is asked for makes no sense ({@code INVALID_REQUEST}). The metadata have the {@code field}. */
public final class InvalidRequestException extends SidecarException {
  private static final long serialVersionUID = 1;

  InvalidRequestException(String message, Map<String, String> metadata, Throwable cause) {
    super("INVALID_REQUEST", message, metadata, cause);
  }
}
