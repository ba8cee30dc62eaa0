package com.fencepost.client;

import java.util.concurrent.CompletableFuture;

/**
 * What is known of a lease. It counts until {@code sent + waited + ttl} on the client's own clock, less a thousandth by
 * which two clocks may differ, so that its loss is known here before another claim can be granted.
 */
final class Lease {
    /** The part of the TTL between renewals. */
    static final double RENEWAL = 0.3;

    final String id;
    final String name;
    final long token;
    /** Completes when the lease is lost, on a thread that renews nothing. */
    final CompletableFuture<LeaseLostException> lost = new CompletableFuture<>();
    private final Session session;
    private volatile long end;
    private volatile LeaseLostException loss;
    private volatile boolean isReleased;

    // Guarded by the session.
    final long granted;
    volatile long ttl;
    /** When the last confirmation arrived. */
    long confirmed;
    /** When it is renewed next. */
    long due;
    Command<?> renewal;
    /** Until when its lock stays taken after its release. */
    volatile long keepUntil;
    /** The thread whose lock it is; null where any may release it. */
    volatile Thread thread;

    Lease(Session session, com.fencepost.v1.Lease info, long sent) {
        this.session = session;
        id = info.getLeaseId();
        name = info.getName();
        token = info.getFencingToken();
        granted = sent + Times.nanos(info.getWaited());
        confirm(granted, Times.nanos(info.getTtl()));
    }

    /** Counts a TTL from then on. A confirmation that comes too late changes nothing. */
    void confirm(long from, long confirmedTtl) {
        ttl = confirmedTtl;
        confirmed = Times.now();
        due = from + (long) (ttl * RENEWAL);
        if (!isOver()) {
            end = Math.max(end, from + ttl - Math.max(ttl / 1000, Times.millis(5)));
        }
    }

    long end() {
        return end;
    }

    /** When its loss is told, so early that its holder can stop in time. */
    long tellAt() {
        return end - Math.min(ttl / 20, Times.millis(250));
    }

    /** The time left, in nanoseconds; zero once the lease is over, also if no thread has run since. */
    long left() {
        long left = isOver() ? 0 : end - Times.now();
        if (left <= 0 && !isOver()) {
            session.lose(this, "unrenewed", "no renewal of " + name + " was confirmed in time");
        }
        return isOver() ? 0 : left;
    }

    boolean isOver() {
        return isReleased || loss != null;
    }

    /** Whether the loss is the first news of its end. It is told by the session. */
    boolean lose(LeaseLostException why) {
        if (isOver()) {
            return false;
        }
        loss = why;
        return true;
    }

    void release() {
        isReleased = true;
    }

    /** An exception of the caller's own, because one that is thrown twice cannot be suppressed by itself. */
    LeaseLostException loss() {
        LeaseLostException known = loss;
        return known == null
                ? new LeaseLostException("released", "the lock " + name + " was released", null)
                : new LeaseLostException(known.lossCause(), name + " is lost", known);
    }
}
