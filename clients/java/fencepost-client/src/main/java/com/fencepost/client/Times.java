package com.fencepost.client;

import com.google.protobuf.Duration;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/** Times in nanoseconds, and as the API has them. */
final class Times {
    /** A time beyond all waits, which can still be added to others. */
    static final long FOREVER = Long.MAX_VALUE / 4;
    private static final Path UPTIME = Path.of("/proc/uptime");
    /** /proc/uptime has hundredths of seconds. */
    private static final long UPTIME_STEP = millis(10);
    private static final long SHORTEST_SUSPEND = millis(50);
    private static final long FIRST_PAUSE = millis(200);
    private static final long LONGEST_PAUSE = seconds(2);

    /** The clocks that a suspend moves. A test replaces them. */
    static volatile LongSupplier wall = () -> millis(System.currentTimeMillis());
    static volatile LongSupplier uptime = Times::readUptime;

    /** So that no time is zero, which means none. */
    private static final long START = System.nanoTime() - seconds(1);
    private static final long UPTIME_AHEAD = readUptime() - running();
    private static volatile long wallAhead = wall.getAsLong() - running();
    private static volatile long suspended;

    /**
     * The time since the start, with that in which the machine was suspended, where /proc/uptime tells it.
     * {@link System#nanoTime()} stops then, but Linux adds a suspend to the wall clock and to the time since boot.
     */
    static long now() {
        long running = running();
        long ahead = wall.getAsLong() - running;
        if (Math.abs(ahead - wallAhead) > SHORTEST_SUSPEND) {
            long stood = uptime.getAsLong() - running - UPTIME_AHEAD;
            if (stood > suspended + SHORTEST_SUSPEND) {
                suspended = stood + UPTIME_STEP;
            }
            wallAhead = ahead;
        }
        return running + suspended;
    }

    private static long running() {
        return System.nanoTime() - START;
    }

    /** On other systems it never moves, so that no suspend is seen. */
    private static long readUptime() {
        try {
            return (long) (Double.parseDouble(Files.readString(UPTIME).split(" ")[0]) * seconds(1));
        } catch (IOException | NumberFormatException unknown) {
            return 0;
        }
    }

    static long seconds(long seconds) {
        return TimeUnit.SECONDS.toNanos(seconds);
    }

    static long millis(long millis) {
        return TimeUnit.MILLISECONDS.toNanos(millis);
    }

    static long nanos(Duration time) {
        return Math.min(TimeUnit.SECONDS.toNanos(time.getSeconds()), FOREVER) + time.getNanos();
    }

    static long nanos(java.time.Duration time) {
        return Math.min(TimeUnit.NANOSECONDS.convert(time), FOREVER);
    }

    static Duration wire(long nanos) {
        long second = seconds(1);
        return Duration.newBuilder().setSeconds(nanos / second).setNanos((int) (nanos % second)).build();
    }

    static Duration wire(java.time.Duration time) {
        return Duration.newBuilder().setSeconds(time.getSeconds()).setNanos(time.getNano()).build();
    }

    /** The pause before a repetition: what the server asks for, or else doubled each time, with jitter. */
    static long pause(int failures, long asked) {
        long pause = Math.min(FIRST_PAUSE << Math.min(Math.max(failures - 1, 0), 10), LONGEST_PAUSE);
        return asked > 0 ? asked : pause / 2 + ThreadLocalRandom.current().nextLong(pause / 2 + 1);
    }

    private Times() {}
}
