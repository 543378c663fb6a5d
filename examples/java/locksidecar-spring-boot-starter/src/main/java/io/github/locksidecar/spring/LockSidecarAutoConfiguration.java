package io.github.locksidecar.spring;

import io.github.locksidecar.LockSidecar;
import io.github.locksidecar.shedlock.SidecarLockProvider;
import net.javacrumbs.shedlock.core.LockProvider;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.context.properties.PropertyMapper;
import org.springframework.boot.health.autoconfigure.contributor.ConditionalOnEnabledHealthIndicator;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.integration.support.locks.LockRegistry;

/**
 * The client, and what connects it to the rest of Spring where that is there: a health indicator, a
 * {@link LockRegistry} and a {@link LockProvider}. The sidecar is called with the first lock, so an
 * app starts before it. What the app defines itself takes the place of each.
 */
@AutoConfiguration
@EnableConfigurationProperties(LockSidecarProperties.class)
public class LockSidecarAutoConfiguration {
  /** Of Spring. */
  public LockSidecarAutoConfiguration() {}

  @Bean
  @ConditionalOnMissingBean
  LockSidecar lockSidecar(LockSidecarProperties given, @Value("${spring.application.name:}") String app) {
    LockSidecar.Builder builder = LockSidecar.builder().name(given.name() == null ? app : given.name());
    PropertyMapper map = PropertyMapper.get();
    map.from(given.socket()).to(builder::socket);
    map.from(given.metadata()).to(builder::metadata);
    map.from(given.connectTimeout()).to(builder::connectTimeout);
    map.from(given.ttl()).to(builder::ttl);
    return builder.connect();
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass({HealthIndicator.class, ConditionalOnEnabledHealthIndicator.class})
  static class Health {
    @Bean
    @ConditionalOnMissingBean(name = "lockSidecarHealthIndicator")
    @ConditionalOnEnabledHealthIndicator("locksidecar")
    SidecarHealthIndicator lockSidecarHealthIndicator(LockSidecar sidecar) {
      return new SidecarHealthIndicator(sidecar);
    }
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(LockRegistry.class)
  static class Registry {
    @Bean
    @ConditionalOnMissingBean(LockRegistry.class)
    SidecarLockRegistry sidecarLockRegistry(LockSidecar sidecar) {
      return new SidecarLockRegistry(sidecar);
    }
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass({LockProvider.class, SidecarLockProvider.class})
  static class ShedLock {
    @Bean
    @ConditionalOnMissingBean(LockProvider.class)
    SidecarLockProvider sidecarLockProvider(LockSidecar sidecar) {
      return new SidecarLockProvider(sidecar);
    }
  }
}
