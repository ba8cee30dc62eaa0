package com.fencepost.client;

import com.fencepost.v1.AcquireRequest;
import com.fencepost.v1.Mode;
import com.fencepost.v1.SessionCommand;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
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
    private final int count;
    private final Function<AcquireRequest, SessionCommand.Builder> verb;
    private final Function<List<Lease>, L> result;
    /** In nanoseconds; zero: a single try. */
    private long wait;
    private long atLeast;

    /** One attempt to take the locks, with a request id of its own. */
    private record Attempt<L>(FencepostClient client, Command<List<Lease>> command, CompletableFuture<L> granted) {
        /** Leaves the queue. What is or was granted is given back. */
        void abandon() {
            client.session.abandon(command);
        }
    }

    LockRequest(FencepostClient client, AcquireRequest.Builder template, int count,
            Function<AcquireRequest, SessionCommand.Builder> verb, Function<List<Lease>, L> result) {
        this.client = client;
        this.template = template;
        this.count = count;
        this.verb = verb;
        this.result = result;
    }

    /**
     * Waits in the lock's queue. Without this, or with zero, the lock is tried once.
     *
     * @param time the longest wait, as long as it likes: the client asks again where the namespace allows less
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
     * Keeps the lock taken for at least this time from its grant on, also if it is released before or the process ends: for
     * jobs that must not run again too soon.
     *
     * @param time up to the namespace's longest time to live; for more, the acquire fails
     * @return this
     */
    public LockRequest<L> atLeast(Duration time) {
        atLeast = Times.nanos(time);
        return this;
    }

    private Attempt<L> begin() {
        var request = template.setRequestId(UUID.randomUUID().toString()).build();
        var span = Spans.acquire(request, wait);
        var command = client.session.acquire(verb.apply(request), count, wait);
        var granted = command.done.thenCompose(this::keep).thenApply(leases -> {
            leases.forEach(lease -> lease.lost.thenAccept(span::lost));
            return result.apply(leases);
        });
        var attempt = new Attempt<>(client, command, granted);
        granted.whenComplete((locks, error) -> {
            if (error != null) { // Also after the grant, if the at-least is refused.
                attempt.abandon();
            }
            span.end(error);
        });
        return attempt;
    }

    /** Lets the leases live for their at-least, and be renewed for their own TTL thereafter. */
    private CompletableFuture<List<Lease>> keep(List<Lease> leases) {
        var kept = leases.stream().filter(lease -> lease.ttl < atLeast).map(lease -> {
            long ttl = lease.ttl;
            return client.session.extend(lease, atLeast).thenCompose(extended -> client.session.extend(lease, ttl));
        }).toArray(CompletableFuture<?>[]::new);
        return CompletableFuture.allOf(kept).thenApply(all -> {
            leases.forEach(lease -> lease.keepUntil = atLeast > 0 ? lease.granted + atLeast : 0);
            return leases;
        });
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
        var attempt = begin();
        try {
            return attempt.granted.get();
        } catch (InterruptedException interrupt) {
            attempt.abandon();
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
        return FencepostClient.join(begin().granted);
    }

    /**
     * Takes the lock without blocking a thread.
     *
     * @return completes as {@link #acquire()} returns, on a thread that renews nothing. Cancelling it or a future that was
     *     made of it, or completing one in another way before, such as by {@code orTimeout}, leaves the queue; a grant that
     *     crosses this is given back.
     */
    public CompletableFuture<L> acquireAsync() {
        var attempt = begin();
        var shown = new Acquiring<L>(attempt::abandon);
        attempt.granted.whenCompleteAsync((lock, error) -> {
            if (error == null) {
                shown.grant(lock);
            } else {
                shown.fail(error instanceof CompletionException wrapped ? wrapped.getCause() : error);
            }
        }, FencepostClient.CALLBACKS);
        return shown;
    }

    /** What the user gets, who may be the first to complete it. */
    private static final class Acquiring<T> extends CompletableFuture<T> {
        private final Runnable leave;

        Acquiring(Runnable leave) {
            this.leave = leave;
        }

        void grant(T lock) {
            if (!super.complete(lock)) {
                leave.run();
            }
        }

        void fail(Throwable error) {
            super.completeExceptionally(error);
        }

        private boolean left(boolean isFirst) {
            if (isFirst) {
                leave.run();
            }
            return isFirst;
        }

        @Override
        public <U> CompletableFuture<U> newIncompleteFuture() {
            return new Acquiring<>(() -> cancel(false));
        }

        @Override
        public boolean complete(T value) {
            return left(super.complete(value));
        }

        @Override
        public boolean completeExceptionally(Throwable error) {
            return left(super.completeExceptionally(error));
        }

        @Override
        public boolean cancel(boolean mayInterrupt) {
            return left(!isDone() && super.cancel(mayInterrupt));
        }
    }
}
