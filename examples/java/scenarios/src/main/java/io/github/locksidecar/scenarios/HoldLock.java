package io.github.locksidecar.scenarios;

import io.github.locksidecar.Hold;
import io.github.locksidecar.LockSidecar;
import java.util.concurrent.CountDownLatch;

/**
 * Takes one lock of the sidecar at $LOCKSIDECAR_SOCKET, says so, and holds it until it is killed or
 * loses it. To see how fast the next one gets in.
 */
public final class HoldLock {
  private HoldLock() {}

  /** Takes the resource as its argument. */
  public static void main(String[] args) throws InterruptedException {
    if (args.length != 1) {
      System.err.println("usage: HoldLock RESOURCE");
      System.exit(2);
    }
    try (LockSidecar sidecar = LockSidecar.builder().name("HoldLock").connect()) {
      System.out.println("waiting");
      Hold hold = sidecar.lock(args[0]).acquire();
      System.out.println("held " + hold.fence());
      CountDownLatch lost = new CountDownLatch(1);
      hold.onLost(
          why -> {
            System.out.println("lost " + why.lostReason());
            lost.countDown();
          });
      lost.await();
    }
  }
}
