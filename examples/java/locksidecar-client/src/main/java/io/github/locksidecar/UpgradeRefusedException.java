package io.github.locksidecar;

import java.util.Map;

/**
 * Who has the read lock asked for the write lock ({@code UPGRADE_REFUSED}). Two that both did so
 * would wait for each other for ever: release the read lock first.
 */
public final class UpgradeRefusedException extends SidecarException {
  private static final long serialVersionUID = 1;

  UpgradeRefusedException(String message, Map<String, String> metadata, Throwable cause) {
    super("UPGRADE_REFUSED", message, metadata, cause);
  }
}
