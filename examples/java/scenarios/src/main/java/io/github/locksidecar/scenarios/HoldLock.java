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
      // What Java loads and compiles for a first lock is not what is looked at.
      sidecar.lock(args[0] + "/" + ProcessHandle.current().pid()).acquire().close();
      say("waiting for", args[0]);
      Hold hold = sidecar.lock(args[0]).acquire();
      say("held", hold.fence());
      CountDownLatch lost = new CountDownLatch(1);
      hold.onLost(
          why -> {
            say("lost", why.lostReason());
            lost.countDown();
          });
      lost.await();
    }
  }

  private static void say(String what, Object more) {
    System.out.println(what + " " + more);
  }
}
