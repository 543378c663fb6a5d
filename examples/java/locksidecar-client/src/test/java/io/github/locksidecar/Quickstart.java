package io.github.locksidecar;

// The program of docs/quickstart.md, so that it is compiled.
import io.github.locksidecar.Hold;
import io.github.locksidecar.LockSidecar;
import java.time.Duration;

public class Quickstart {
  public static void main(String[] args) throws InterruptedException {
    LockSidecar sidecar = LockSidecar.connect();            // $LOCKSIDECAR_SOCKET, or the default
    try (Hold hold = sidecar.lock("orders/42").acquire(Duration.ofSeconds(5))) {
      System.out.println("write this with fence " + hold.fence());
      hold.check();                                         // LockLostException when the lock is lost
    }
    sidecar.close();
  }
}
