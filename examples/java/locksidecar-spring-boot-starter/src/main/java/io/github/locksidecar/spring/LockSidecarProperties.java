package io.github.locksidecar.spring;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import org.springframework.boot.context.properties.ConfigurationProperties;

/**
 * What an app may say of the sidecar, as {@code locksidecar.…}. Whatever is null is as in {@link
 * io.github.locksidecar.LockSidecar.Builder}.
 *
 * @param socket where the sidecar is; default: {@code $LOCKSIDECAR_SOCKET}, or where a sidecar of this
 *     user is
 * @param name shown in lists; default: {@code spring.application.name}
 * @param metadata shown in lists; no secrets
 * @param connectTimeout how long it may take to open a session
 * @param ttl the sidecar ends the session when this process does not live for so long
 */
@ConfigurationProperties("locksidecar")
public record LockSidecarProperties(
    Path socket, String name, Map<String, String> metadata, Duration connectTimeout, Duration ttl) {}
