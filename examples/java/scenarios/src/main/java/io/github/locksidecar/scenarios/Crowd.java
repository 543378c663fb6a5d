package io.github.locksidecar.scenarios;

import io.github.locksidecar.Hold;
import io.github.locksidecar.LockSidecar;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** 1,000 threads that hold a lock each at the same time. Prints how many the sidecar counts. */
public final class Crowd {
  private static final int CROWD = 1000;

  private Crowd() {}

  public static void main(String[] args) throws InterruptedException {
    try (LockSidecar sidecar = LockSidecar.connect()) {
      CountDownLatch held = new CountDownLatch(CROWD);
      CountDownLatch counted = new CountDownLatch(1);
      List<Thread> threads = new ArrayList<>();
      for (int i = 0; i < CROWD; i++) {
        String name = "thread/" + i;
        Thread t = new Thread(() -> hold(sidecar, name, held, counted));
        threads.add(t);
        t.start();
      }
      held.await();
      System.out.println(sidecar.info().holds());
      counted.countDown();
      for (Thread t : threads) {
        t.join();
      }
    }
  }

  private static void hold(LockSidecar sidecar, String name, CountDownLatch held, CountDownLatch counted) {
    try (Hold hold = sidecar.lock(name).acquire()) {
      held.countDown();
      counted.await();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }
}
