package io.github.locksidecar;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Waits for answers. What has no limit here ends all the same: its session sees to that. */
final class Answers {
  private Answers() {}

  /** Waits for what comes in any case; the thread is marked as interrupted afterwards if it was. */
  static <T> T get(CompletableFuture<T> future) {
    settle(future, 0);
    try {
      return future.join();
    } catch (CompletionException e) {
      throw again(e);
    }
  }

  /** The same, unless the thread is interrupted. */
  static <T> T getInterruptibly(CompletableFuture<T> future) throws InterruptedException {
    try {
      return future.get();
    } catch (ExecutionException e) {
      throw again(e);
    }
  }

  /** Waits for an answer as long as limit (in nanoseconds). */
  static Json await(Call c, long limit, String what) {
    settle(c.answer, Math.max(1, limit));
    if (!c.answer.isDone()) {
      throw SidecarUnavailableException.silent(what);
    }
    return get(c.answer);
  }

  /** Waits until it is done or limit (in nanoseconds; 0: none) is over, and tells neither. */
  static void settle(CompletableFuture<?> done, long limit) {
    long end = System.nanoTime() + limit;
    boolean interrupted = false;
    while (!done.isDone()) {
      try {
        if (limit == 0) {
          done.get();
        } else {
          done.get(end - System.nanoTime(), TimeUnit.NANOSECONDS);
        }
      } catch (InterruptedException e) {
        interrupted = true;
      } catch (TimeoutException | ExecutionException e) {
        break;
      }
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  /** What others were told too, with the stack of this caller. */
  static SidecarException again(Throwable why) {
    boolean wrapped = why instanceof ExecutionException || why instanceof CompletionException;
    Throwable end = wrapped && why.getCause() != null ? why.getCause() : why;
    if (end instanceof SidecarException e) {
      return e.again();
    }
    return SidecarException.of("INTERNAL", String.valueOf(end), Map.of(), end);
  }
}
