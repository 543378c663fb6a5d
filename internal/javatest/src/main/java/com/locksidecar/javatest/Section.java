package com.locksidecar.javatest;

import java.time.Duration;

/** What a library offers to keep others out. */
interface Section {
    /** Enters within the time, or says false. */
    boolean enter(boolean write, Duration wait) throws Exception;

    void leave(boolean write) throws Exception;
}
