package com.fencepost.client;

import com.google.protobuf.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/** Times in nanoseconds, and as the API has them. */
final class Times {
    /** A time beyond all waits, which can still be added to others. */
    static final long FOREVER = Long.MAX_VALUE / 4;
    private static final long START = System.nanoTime();
    private static final long FIRST_PAUSE = millis(100);
    private static final long LONGEST_PAUSE = seconds(2);

    /** The time since the start, on the clock of {@link System#nanoTime()}; unlike that, it can be compared. */
    static long now() {
        return System.nanoTime() - START;
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

    /** The pause before a repetition: doubled each time, with jitter. */
    static long pause(int failures) {
        long pause = Math.min(FIRST_PAUSE << Math.min(failures, 10), LONGEST_PAUSE);
        return pause / 2 + ThreadLocalRandom.current().nextLong(pause / 2 + 1);
    }

    private Times() {}
}
