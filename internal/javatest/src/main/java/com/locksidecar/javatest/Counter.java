package com.locksidecar.javatest;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * A number in a file, which loses increments when two increment it at a time, and a log of who was
 * inside. counter.go describes the files and reads the log.
 */
final class Counter {
    private static final int DIGITS = 10;
    private static final long PAUSE_MILLIS = 1;

    private final String who;
    private final FileChannel value;
    private final FileChannel log;

    Counter(Path dir, String who) throws IOException {
        this.who = who;
        value = FileChannel.open(dir.resolve("value"), StandardOpenOption.READ, StandardOpenOption.WRITE);
        log = FileChannel.open(dir.resolve("log"), StandardOpenOption.WRITE, StandardOpenOption.APPEND);
    }

    /** Adds one. The caller is alone, unless the lock is broken. */
    void add() throws Exception {
        note("enter write");
        long n = get();
        Thread.sleep(PAUSE_MILLIS);
        value.write(ByteBuffer.wrap(String.format("%0" + DIGITS + "d", n + 1).getBytes(StandardCharsets.US_ASCII)), 0);
        note("leave write");
    }

    /** Looks at the value for a while. No writer is inside, unless the lock is broken. */
    void look() throws Exception {
        note("enter read");
        long n = get();
        Thread.sleep(PAUSE_MILLIS);
        if (get() != n) {
            note("saw a change");
        }
        note("leave read");
    }

    private long get() throws IOException {
        ByteBuffer b = ByteBuffer.allocate(DIGITS);
        value.read(b, 0);
        return Long.parseLong(new String(b.array(), StandardCharsets.US_ASCII));
    }

    private void note(String what) throws IOException {
        log.write(ByteBuffer.wrap((who + " " + what + "\n").getBytes(StandardCharsets.UTF_8)));
    }
}
