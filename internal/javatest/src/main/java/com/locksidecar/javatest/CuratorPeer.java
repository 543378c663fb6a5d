package com.locksidecar.javatest;

import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryNTimes;

/**
 * Locks with Apache Curator. Arguments: counter, name, servers with a chroot, "mutex" or
 * "readwrite", path.
 */
public final class CuratorPeer {
    private static final int SESSION_MILLIS = 10_000;
    private static final int CONNECT_MILLIS = 10_000;

    private CuratorPeer() {}

    public static void main(String[] args) throws Exception {
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(args[2], SESSION_MILLIS, CONNECT_MILLIS, new RetryNTimes(10, 100));
        client.start();
        InterProcessLock write;
        InterProcessLock read;
        switch (args[3]) {
            case "mutex" -> {
                write = new InterProcessMutex(client, args[4]);
                read = write;
            }
            case "readwrite" -> {
                InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, args[4]);
                write = both.writeLock();
                read = both.readLock();
            }
            default -> throw new IllegalArgumentException("no lock of kind " + args[3]);
        }
        client.blockUntilConnected();
        Section section = new Section() {
            @Override
            public boolean enter(boolean forWrite, Duration wait) throws Exception {
                return (forWrite ? write : read).acquire(wait.toMillis(), TimeUnit.MILLISECONDS);
            }

            @Override
            public void leave(boolean forWrite) throws Exception {
                (forWrite ? write : read).release();
            }
        };
        new Commands(section, new Counter(Path.of(args[0]), args[1])).run();
    }
}
