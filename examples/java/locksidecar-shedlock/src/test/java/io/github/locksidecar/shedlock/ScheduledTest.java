package io.github.locksidecar.shedlock;

import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.LockSidecar;
import io.github.locksidecar.TestSidecar;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import net.javacrumbs.shedlock.core.LockAssert;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import org.junit.jupiter.api.Test;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;

/** Two services of Spring with the same task, which is due ten times a second in each. */
class ScheduledTest {
  static final long SECOND = TimeUnit.SECONDS.toNanos(1);

  static TestSidecar sidecar;
  static final AtomicInteger runs = new AtomicInteger();
  static final List<Grant> grants = Collections.synchronizedList(new ArrayList<>());

  /** When a lock was asked for, and when it was there. */
  record Grant(long asked, long got) {}

  @Configuration
  @EnableScheduling
  @EnableSchedulerLock(defaultLockAtMostFor = "1m")
  static class Service {
    @Bean
    LockSidecar sidecar() {
      return LockSidecar.connect(sidecar.socket);
    }

    @Bean
    LockProvider locks(LockSidecar locks) {
      SidecarLockProvider provider = new SidecarLockProvider(locks);
      return how -> {
        long asked = System.nanoTime();
        Optional<SimpleLock> lock = provider.lock(how);
        lock.ifPresent(l -> grants.add(new Grant(asked, System.nanoTime())));
        return lock;
      };
    }

    @Bean
    Report report() {
      return new Report();
    }
  }

  static class Report {
    @Scheduled(fixedRate = 100)
    @SchedulerLock(name = "report", lockAtLeastFor = "2s")
    public void make() {
      LockAssert.assertLocked();
      runs.incrementAndGet();
    }
  }

  @Test
  void aTaskRunsOnceInLockAtLeastFor() {
    sidecar = TestSidecar.start();
    try (var one = new AnnotationConfigApplicationContext(Service.class);
        var two = new AnnotationConfigApplicationContext(Service.class)) {
      TestSidecar.eventually("it runs twice", () -> runs.get() >= 2);
      long first = grants.get(0).asked();
      TestSidecar.eventually("three seconds are over", () -> System.nanoTime() - first > 3 * SECOND);
      List<Grant> all = List.copyOf(grants);
      for (int i = 1; i < all.size(); i++) {
        long apart = all.get(i).got() - all.get(i - 1).asked();
        assertTrue(apart >= 2 * SECOND, "after " + apart + " ns again");
      }
      assertTrue(all.stream().filter(g -> g.got() - first <= 3 * SECOND).count() <= 2, "more than 2 runs in 3 s: " + all);
    } finally {
      sidecar.close();
    }
  }
}
