package com.locksidecar.javatest;

import java.nio.file.Path;
import java.time.Duration;

/** Locks nothing: shows that the counter loses increments then. Arguments: counter, name. */
public final class UnlockedPeer {
    private UnlockedPeer() {}

    public static void main(String[] args) throws Exception {
        Section open = new Section() {
            @Override
            public boolean enter(boolean write, Duration wait) {
                return true;
            }

            @Override
            public void leave(boolean write) {}
        };
        new Commands(open, new Counter(Path.of(args[0]), args[1])).run();
    }
}
