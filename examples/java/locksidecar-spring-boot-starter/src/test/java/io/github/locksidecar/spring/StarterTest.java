package io.github.locksidecar.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.LockSidecar;
import io.github.locksidecar.LockState;
import io.github.locksidecar.TestSidecar;
import io.github.locksidecar.shedlock.SidecarLockProvider;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.health.contributor.Health;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.boot.health.contributor.Status;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;

/** Real apps of Spring Boot beside a real sidecar. */
class StarterTest {
  static TestSidecar sidecar;

  @BeforeAll
  static void start() {
    sidecar = TestSidecar.start("--name", "node-1");
  }

  @AfterAll
  static void stop() {
    sidecar.close();
  }

  @Configuration
  @EnableAutoConfiguration
  static class App {}

  static ConfigurableApplicationContext run(Class<?> app, String... more) {
    List<String> properties = new ArrayList<>(List.of("spring.main.banner-mode=off", "logging.level.root=warn"));
    properties.addAll(List.of(more));
    return new SpringApplicationBuilder(app).web(WebApplicationType.NONE).properties(properties.toArray(String[]::new)).run();
  }

  static String socket() {
    return "locksidecar.socket=" + sidecar.socket;
  }

  @Test
  void whatTheAppSays() throws Exception {
    try (ConfigurableApplicationContext app =
        run(App.class, socket(), "spring.application.name=billing", "locksidecar.metadata.zone=a", "locksidecar.connect-timeout=9s", "locksidecar.ttl=30s")) {
      LockSidecar locks = app.getBean(LockSidecar.class);
      locks.lock("r").lock();
      LockState.Holder holder = locks.get("r").holders().get(0);
      assertEquals("billing", holder.session());
      assertEquals(Map.of("zone", "a"), holder.metadata());
      locks.lock("r").unlock();
      assertInstanceOf(SidecarLockProvider.class, app.getBean(LockProvider.class));
      locks.lock("r").lock();
    }
    try (LockSidecar other = LockSidecar.connect(sidecar.socket)) {
      assertFalse(other.get("r").isHeld(), "the end of the app ends its session");
    }
  }

  @Test
  void locksOfSpringIntegration() throws Exception {
    try (ConfigurableApplicationContext app = run(App.class, socket(), "locksidecar.name=orders")) {
      LockRegistry<?> registry = app.getBean(LockRegistry.class);
      int[] count = new int[1];
      registry.executeLocked(
          "k",
          () -> {
            count[0]++;
            registry.executeLocked("k", () -> count[0]++); // reentrant
            assertEquals("orders", app.getBean(LockSidecar.class).get("integration/k").holders().get(0).session());
            assertFalse(CompletableFuture.supplyAsync(() -> registry.obtain("k").tryLock()).join(), "another thread");
          });
      assertEquals(2, count[0]);
      assertThrows(NullPointerException.class, () -> registry.obtain(null));
    }
  }

  @Test
  void health() throws Exception {
    try (TestSidecar mortal = TestSidecar.start("--name", "node-7");
        ConfigurableApplicationContext app = run(App.class, "locksidecar.socket=" + mortal.socket)) {
      HealthIndicator indicator = app.getBean(SidecarHealthIndicator.class);
      Health up = indicator.health();
      assertEquals(Status.UP, up.getStatus(), up.toString());
      assertEquals("node-7", up.getDetails().get("sidecar"));
      mortal.kill();
      Health down = indicator.health();
      assertEquals(Status.DOWN, down.getStatus());
      assertTrue(down.getDetails().get("error").toString().contains("locksidecar serve"), down.toString());
    }
  }

  @Test
  void anAppStartsBeforeItsSidecar() {
    try (ConfigurableApplicationContext app = run(App.class, "locksidecar.socket=/there/is/no/socket")) {
      assertEquals(Path.of("/there/is/no/socket"), app.getBean(LockSidecar.class).socket());
      assertEquals(Status.DOWN, app.getBean(SidecarHealthIndicator.class).health().getStatus());
    }
    try (ConfigurableApplicationContext app = run(App.class, socket(), "management.health.locksidecar.enabled=false")) {
      assertEquals(0, app.getBeanNamesForType(SidecarHealthIndicator.class).length);
    }
  }

  @Configuration
  @EnableAutoConfiguration
  static class OwnBeans {
    static final LockProvider PROVIDER = how -> java.util.Optional.empty();

    @Bean
    LockSidecar mine() {
      return LockSidecar.builder().socket(sidecar.socket).name("mine").connect();
    }

    @Bean
    LockProvider provider() {
      return PROVIDER;
    }

    @Bean
    LockRegistry<?> registry(LockSidecar locks) {
      return new SidecarLockRegistry(locks, "mine/");
    }
  }

  @Test
  void whatTheAppDefinesItself() {
    try (ConfigurableApplicationContext app = run(OwnBeans.class)) {
      assertSame(OwnBeans.PROVIDER, app.getBean(LockProvider.class));
      assertEquals("SidecarLock[mine/k EXCLUSIVE reentrant]", app.getBean(LockRegistry.class).obtain("k").toString());
      assertSame(app.getBean("mine"), app.getBean(LockSidecar.class));
    }
  }

  static final AtomicInteger runs = new AtomicInteger();
  static final AtomicInteger ticks = new AtomicInteger();

  @Configuration
  @EnableAutoConfiguration
  @EnableScheduling
  @EnableSchedulerLock(defaultLockAtMostFor = "10m")
  static class Scheduled1 {
    @Bean
    Task task() {
      return new Task();
    }
  }

  static class Task {
    private final AtomicInteger mine = new AtomicInteger();

    @Scheduled(fixedRate = 50)
    @SchedulerLock(name = "starter-report", lockAtLeastFor = "5m")
    public void report() {
      runs.incrementAndGet();
    }

    @Scheduled(fixedRate = 50)
    public void tick() { // the same thread: the report was due meanwhile
      if (mine.incrementAndGet() == 10) {
        ticks.incrementAndGet();
      }
    }
  }

  @Test
  void aScheduledTaskRunsOnceInTwoApps() {
    try (ConfigurableApplicationContext one = run(Scheduled1.class, socket());
        ConfigurableApplicationContext two = run(Scheduled1.class, socket())) {
      TestSidecar.eventually("ten ticks in each", () -> ticks.get() == 2);
      assertEquals(1, runs.get());
    }
  }
}
