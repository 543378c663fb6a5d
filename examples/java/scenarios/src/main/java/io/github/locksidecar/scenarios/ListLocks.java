package io.github.locksidecar.scenarios;

import io.github.locksidecar.IncompleteException;
import io.github.locksidecar.LockChange;
import io.github.locksidecar.LockSidecar;
import io.github.locksidecar.LockState;
import java.util.stream.Stream;

/** Prints what is held, and which shards of the store do not answer: to a list, and to a watch. */
public final class ListLocks {
  private ListLocks() {}

  public static void main(String[] args) {
    try (LockSidecar sidecar = LockSidecar.connect()) {
      try (Stream<LockState> all = sidecar.list("")) {
        all.forEach(l -> System.out.println(l.resource()));
      } catch (IncompleteException e) {
        System.out.println("lacks " + String.join(" ", e.missing()));
      }
      try (Stream<LockChange> watch = sidecar.watch("")) {
        LockChange first = watch.iterator().next();
        System.out.println(first.kind() + " " + String.join(" ", first.missingShards()));
      }
    }
  }
}
