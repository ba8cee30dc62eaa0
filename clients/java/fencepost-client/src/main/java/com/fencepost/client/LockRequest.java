package com.fencepost.client;

import com.fencepost.v1.AcquireRequest;
import com.fencepost.v1.Mode;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Function;

/**
 * A request for a lock, for several, or for a leadership. Nothing is sent before {@link #acquire()},
 * {@link #tryAcquire()} or {@link #acquireAsync()}, each call of which is a new attempt. Not thread-safe.
 *
 * @param <L> what is taken
 */
public final class LockRequest<L> {
    final FencepostClient client;
    final AcquireRequest.Builder template;
    final int count;
    final Acquisition.Verb verb;
    final Function<List<HeldLock>, L> result;
    /** In nanoseconds; zero: a single try. */
    long wait;

    LockRequest(FencepostClient client, AcquireRequest.Builder template, int count, Acquisition.Verb verb,
            Function<List<HeldLock>, L> result) {
        this.client = client;
        this.template = template;
        this.count = count;
        this.verb = verb;
        this.result = result;
    }

    /**
     * Waits in the lock's queue. Without this, or with zero, the lock is tried once.
     *
     * @param time the longest wait, within the namespace's bounds if it is below a minute
     * @return this
     */
    public LockRequest<L> waitFor(Duration time) {
        if (time.isNegative()) {
            throw new IllegalArgumentException("waitFor: " + time + " is negative");
        }
        wait = Times.nanos(time);
        return this;
    }

    /**
     * Waits in the lock's queue until the lock is granted.
     *
     * @return this
     */
    public LockRequest<L> waitForever() {
        wait = Times.FOREVER;
        return this;
    }

    /**
     * Sets the time to live of the lease without a renewal. Without this, it is the namespace's default.
     *
     * @param time within the namespace's bounds
     * @return this
     */
    public LockRequest<L> ttl(Duration time) {
        template.setTtl(Times.wire(time));
        return this;
    }

    /**
     * Shares the lock with other shared claims, as a read lock does.
     *
     * @return this
     */
    public LockRequest<L> shared() {
        template.setMode(Mode.newBuilder().setShared(Mode.Shared.getDefaultInstance()));
        return this;
    }

    /**
     * Takes some permits of a semaphore.
     *
     * @param permits how many, 1 to {@code limit}
     * @param limit how many there are in all, at most 1,000,000; the smallest limit among the claims counts
     * @return this
     */
    public LockRequest<L> permits(int permits, int limit) {
        template.setMode(Mode.newBuilder()
                .setSemaphore(Mode.Semaphore.newBuilder().setPermits(permits).setLimit(limit)));
        return this;
    }

    /**
     * Adds an entry that operators see.
     *
     * @param key of at most 16 entries
     * @param value of at most 4096 bytes with all others
     * @return this
     */
    public LockRequest<L> metadata(String key, String value) {
        template.putMetadata(key, value);
        return this;
    }

    /**
     * Takes the lock.
     *
     * @return the lock, which is to be closed
     * @throws LockHeldException if it is held and the request does not wait
     * @throws WaitTimeoutException if it was not granted within the wait
     * @throws UnavailableException if no server could answer within the wait, or within some seconds without a wait
     * @throws FencepostException if the server refuses the request, or its answer lacks a lease ({@code INCOMPLETE}); what
     *     that grants is released
     * @throws InterruptedException if the thread is interrupted; the request then leaves the queue, and a grant that
     *     crosses the interrupt is given back
     */
    public L acquire() throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        var acquisition = new Acquisition<>(this);
        try {
            return acquisition.granted.get();
        } catch (InterruptedException interrupt) {
            acquisition.abandon();
            throw interrupt;
        } catch (ExecutionException failed) {
            throw FencepostClient.thrown(failed.getCause());
        }
    }

    /**
     * Takes the lock if it can be taken, within the wait if there is one.
     *
     * @return the lock, which is to be closed; empty where {@link #acquire()} throws {@link LockHeldException} or
     *     {@link WaitTimeoutException}
     * @throws InterruptedException as {@link #acquire()} does
     */
    public Optional<L> tryAcquire() throws InterruptedException {
        try {
            return Optional.of(acquire());
        } catch (LockHeldException | WaitTimeoutException taken) {
            return Optional.empty();
        }
    }

    L acquireUninterruptibly() {
        return FencepostClient.join(new Acquisition<>(this).granted);
    }

    /**
     * Takes the lock without blocking a thread.
     *
     * @return completes as {@link #acquire()} returns, on a thread that renews nothing. Cancelling it, or completing it in
     *     another way such as by {@code orTimeout} or {@code completeOnTimeout}, leaves the queue; a grant that crosses this is given back.
     */
    public CompletableFuture<L> acquireAsync() {
        var acquisition = new Acquisition<>(this);
        var shown = new CompletableFuture<L>();
        acquisition.granted.whenCompleteAsync((lock, error) -> {
            if (error != null) {
                shown.completeExceptionally(error);
            } else {
                shown.complete(lock);
            }
        }, client.callbacks);
        shown.whenComplete((lock, error) -> {
            // A value that is not the granted lock is the user's own, and nobody would close the lock.
            if (lock == null || lock != acquisition.granted.exceptionally(failed -> null).getNow(null)) {
                acquisition.abandon();
            }
        });
        return shown;
    }
}
