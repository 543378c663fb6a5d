package io.github.locksidecar;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * A list lacks what some shards of the store have, which did not answer ({@code STORE_UNAVAILABLE}). It comes
 * after what the others have.
 */
public final class IncompleteException extends StoreUnavailableException {
  private static final long serialVersionUID = 1;

  private final String[] missing;

  IncompleteException(Set<String> missing) {
    this(new TreeSet<>(missing).toArray(String[]::new));
  }

  private IncompleteException(String[] missing) {
    super("the list is not complete: these shards of the store do not answer: " + String.join(", ", missing), Map.of(), null);
    this.missing = missing;
  }

  /** The names of the shards. */
  public List<String> missing() {
    return List.of(missing);
  }
}
