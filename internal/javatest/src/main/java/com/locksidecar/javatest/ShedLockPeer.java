package com.locksidecar.javatest;

import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;

/**
 * Locks with ShedLock on the time of the database. Arguments: counter, name, JDBC URL, user,
 * password, table, name of the lock.
 */
public final class ShedLockPeer {
    private static final Duration AT_MOST = Duration.ofSeconds(30);
    private static final long POLL_MILLIS = 2;

    private ShedLockPeer() {}

    public static void main(String[] args) throws Exception {
        SingleConnectionDataSource database = new SingleConnectionDataSource(args[2], args[3], args[4], true);
        LockProvider provider = new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
                .withJdbcTemplate(new JdbcTemplate(database))
                .withTableName(args[5])
                .withLockedByValue(args[1])
                .usingDbTime()
                .build());
        database.getConnection(); // fails now and not at the first lock
        new Commands(new ShedLockSection(provider, args[6]), new Counter(Path.of(args[0]), args[1])).run();
    }

    /** ShedLock does not wait: it is asked until it says yes. All its locks are exclusive. */
    private static final class ShedLockSection implements Section {
        private final LockProvider provider;
        private final String name;
        private SimpleLock held;

        ShedLockSection(LockProvider provider, String name) {
            this.provider = provider;
            this.name = name;
        }

        @Override
        public boolean enter(boolean write, Duration wait) throws Exception {
            long end = System.nanoTime() + wait.toNanos();
            while (true) {
                Optional<SimpleLock> lock =
                        provider.lock(new LockConfiguration(Instant.now(), name, AT_MOST, Duration.ZERO));
                if (lock.isPresent()) {
                    held = lock.get();
                    return true;
                }
                if (System.nanoTime() >= end) {
                    return false;
                }
                Thread.sleep(POLL_MILLIS);
            }
        }

        @Override
        public void leave(boolean write) {
            held.unlock();
            held = null;
        }
    }
}
