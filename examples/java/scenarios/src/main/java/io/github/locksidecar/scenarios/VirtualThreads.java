package io.github.locksidecar.scenarios;

import io.github.locksidecar.LockSidecar;
import io.github.locksidecar.SidecarLock;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Many virtual threads count under one lock of the sidecar at $LOCKSIDECAR_SOCKET, on one carrier
 * thread: run it with -Djdk.virtualThreadScheduler.parallelism=1 and
 * -Djdk.virtualThreadScheduler.maxPoolSize=1. A client that kept the carrier while it waits would
 * stop them all. Needs Java 21; for older ones the project is built, hence the reflection.
 */
public final class VirtualThreads {
  private static final int THREADS = 200;
  private static final int TIMES = 3;

  private static int count; // guarded by the lock

  private VirtualThreads() {}

  /** Takes the resource as its argument. */
  public static void main(String[] args) throws Exception {
    if (args.length != 1) {
      System.err.println("usage: VirtualThreads RESOURCE");
      System.exit(2);
    }
    ExecutorService threads = virtualThreads();
    try (LockSidecar sidecar = LockSidecar.builder().name("VirtualThreads").connect()) {
      count(threads, sidecar.lock(args[0]).reentrant());
      System.out.println("counted " + count);
      interrupt(threads, sidecar.lock(args[0]));
      System.out.println("interrupted, and nothing is left");
    } finally {
      threads.shutdownNow();
    }
  }

  private static void count(ExecutorService threads, SidecarLock lock) throws Exception {
    List<Future<?>> all = new ArrayList<>();
    for (int i = 0; i < THREADS; i++) {
      all.add(
          threads.submit(
              () -> {
                for (int j = 0; j < TIMES; j++) {
                  lock.lock();
                  try {
                    lock.lock(); // re-enters: each virtual thread is an owner of its own
                    int before = count;
                    Thread.yield();
                    count = before + 1;
                    lock.unlock();
                  } finally {
                    lock.unlock();
                  }
                }
              }));
    }
    for (Future<?> one : all) {
      one.get(60, TimeUnit.SECONDS);
    }
  }

  private static void interrupt(ExecutorService threads, SidecarLock lock) throws Exception {
    CountDownLatch held = new CountDownLatch(1);
    CountDownLatch enough = new CountDownLatch(1);
    Future<?> holder =
        threads.submit(
            () -> {
              lock.lock();
              held.countDown();
              try {
                enough.await();
              } finally {
                lock.unlock();
              }
              return null;
            });
    held.await();
    CountDownLatch left = new CountDownLatch(1);
    Future<?> waiter =
        threads.submit(
            () -> {
              try {
                lock.lockInterruptibly();
                throw new IllegalStateException("it was granted a lock that another thread has");
              } catch (InterruptedException e) {
                left.countDown();
              }
              return null;
            });
    Thread.sleep(100); // so that it most likely waits
    waiter.cancel(true);
    if (!left.await(10, TimeUnit.SECONDS)) {
      throw new IllegalStateException("an interrupted virtual thread goes on waiting");
    }
    enough.countDown();
    holder.get(10, TimeUnit.SECONDS);
    if (!lock.tryLock(10, TimeUnit.SECONDS)) {
      throw new IllegalStateException("the interrupted wait has left something in the queue");
    }
    lock.unlock();
  }

  private static ExecutorService virtualThreads() throws ReflectiveOperationException {
    try {
      return (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
    } catch (InvocationTargetException e) {
      throw new IllegalStateException(e.getCause());
    }
  }
}
