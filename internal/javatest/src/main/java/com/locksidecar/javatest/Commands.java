package com.locksidecar.javatest;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.LinkedBlockingQueue;

/** Carries out what comes in on standard input, a line at a time; peer.go is the other side. */
final class Commands {
    private static final Duration LONG = Duration.ofMinutes(2);

    private final Section section;
    private final Counter counter;

    Commands(Section section, Counter counter) {
        this.section = section;
        this.counter = counter;
    }

    /** Never returns: the process ends with its standard input, even where it waits for a lock. */
    void run() throws Exception {
        LinkedBlockingQueue<String> lines = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> read(lines), "stdin");
        reader.setDaemon(true);
        reader.start();
        System.out.println("ready");
        while (true) {
            System.out.println(answer(lines.take().split(" ")));
        }
    }

    private static void read(LinkedBlockingQueue<String> lines) {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                lines.add(line);
            }
        } catch (IOException e) {
            e.printStackTrace();
        }
        Runtime.getRuntime().halt(0);
    }

    private String answer(String[] words) throws Exception {
        boolean write = words[1].equals("write");
        switch (words[0]) {
            case "count" -> {
                for (int n = Integer.parseInt(words[2]); n > 0; n--) {
                    once(write);
                }
                return "done";
            }
            case "try" -> {
                return section.enter(write, Duration.ofMillis(Integer.parseInt(words[2]))) ? "taken" : "held";
            }
            case "leave" -> {
                section.leave(write);
                return "done";
            }
            default -> throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    private void once(boolean write) throws Exception {
        if (!section.enter(write, LONG)) {
            throw new IllegalStateException("waited in vain for " + LONG);
        }
        try {
            if (write) {
                counter.add();
            } else {
                counter.look();
            }
        } finally {
            section.leave(write);
        }
    }
}
