package com.fencepost.client;

import java.lang.System.Logger.Level;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;

/**
 * What is known of a lease. It counts until {@code sent + waited + ttl} on the client's own clock, so that its loss is
 * known here before another claim can be granted.
 */
final class Lease {
    private static final System.Logger LOG = System.getLogger("com.fencepost.client");

    final String id;
    final String name;
    final long token;
    /** Completes when the lease is lost, on a thread that renews nothing. */
    final CompletableFuture<LeaseLostException> lost = new CompletableFuture<>();
    /** A beat of the present stream has named it. */
    boolean isNamed;
    /** The server refused its last renewal, which a new connection would not change but a later beat may. */
    boolean isRefused;
    private final Executor callbacks;
    private volatile long begin;
    private volatile long ttl;
    private volatile long end;
    private volatile LeaseLostException loss;
    private volatile boolean isReleased;

    Lease(com.fencepost.v1.Lease granted, long sent, Executor callbacks) {
        id = granted.getLeaseId();
        name = granted.getName();
        token = granted.getFencingToken();
        this.callbacks = callbacks;
        begin = sent + Times.nanos(granted.getWaited());
        ttl = Times.nanos(granted.getTtl());
        end = begin + ttl;
    }

    /** When its last renewal was sent, or the earliest time of its grant. */
    long begin() {
        return begin;
    }

    long ttl() {
        return ttl;
    }

    long end() {
        return end;
    }

    /** The time left, in nanoseconds; not positive once the lease is over, also if no thread has run since. */
    long left() {
        long left = end - Times.now();
        if (left <= 0) {
            lose("unrenewed", "no renewal of " + name + " was confirmed in time");
        }
        return isOver() ? 0 : left;
    }

    boolean isOver() {
        return isReleased || loss != null;
    }

    /** A renewal that was sent then was confirmed. A confirmation that comes too late changes nothing. */
    synchronized void renewed(long sent, long newTtl) {
        if (left() > 0) {
            begin = Math.max(begin, sent);
            ttl = newTtl;
            end = Math.max(end, sent + newTtl);
        }
    }

    synchronized void lose(String cause, String message) {
        if (!isOver()) {
            LOG.log(Level.WARNING, "lost the lease of {0}, token {1}: {2}", name, Long.toString(token), message);
            var lostNow = new LeaseLostException(cause, message, null);
            loss = lostNow;
            callbacks.execute(() -> lost.complete(lostNow));
        }
    }

    /** Its loss is of no interest any more. */
    synchronized void released() {
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
