package com.fencepost.client;

import com.fencepost.v1.SessionCommand;
import com.fencepost.v1.UpdateMetadataRequest;
import java.lang.ref.Cleaner;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/**
 * A held lock. Its lease is renewed until {@link #close()}, which any thread may call, or until the program no longer refers
 * to this object: then the log says that the close is missing, and the lock is free when its time to live is over.
 *
 * <p>A process can be paused between {@link #check()} and a write. Where that matters, send {@link #token()} with each
 * write, and let the resource refuse a token below the highest that it has seen.
 */
public class HeldLock implements AutoCloseable {
    final FencepostClient client;
    final Lease lease;
    private final AtomicBoolean isClosed = new AtomicBoolean();
    private final Cleaner.Cleanable dropped;

    HeldLock(FencepostClient client, Lease lease) {
        this.client = client;
        this.lease = lease;
        Session session = client.session;
        dropped = FencepostClient.CLEANER.register(this, () -> session.dropped(lease));
    }

    /** {@return the name of the lock} */
    public String name() {
        return lease.name;
    }

    /** {@return the fencing token, which rises with every grant of the lock; also after a loss} */
    public long token() {
        return lease.token;
    }

    /**
     * {@return the fencing token of the lock, which is held} Reads the clock, so that it is right after a pause too.
     *
     * @throws LeaseLostException if the lease is or may be lost, or was released
     */
    public long check() {
        if (!isHeld()) {
            throw lease.loss();
        }
        return lease.token;
    }

    /** {@return whether the lease is surely held} Reads the clock, so that it is right after a pause too. */
    public boolean isHeld() {
        return lease.left() > 0;
    }

    /** {@return the time for which the lease is held if no renewal succeeds; zero once it is or may be lost} */
    public Duration remaining() {
        return Duration.ofNanos(lease.left());
    }

    /**
     * Calls back once when the lease is or may be lost, up to 250 ms before its end, so that its holder can stop in time; at
     * once if it is lost already, and never after {@link #close()}.
     *
     * @param executor runs the callback; a slow one delays no renewal
     * @param callback gets the loss; what it throws is logged
     */
    public void onLost(Executor executor, Consumer<? super LeaseLostException> callback) {
        isHeld();
        // An executor that blocks or runs the callback itself delays no other one.
        lease.lost.thenAcceptAsync(loss -> executor.execute(() -> {
            try {
                callback.accept(loss);
            } catch (RuntimeException failed) {
                Session.log(Level.ERROR, "a callback failed: " + failed);
            }
        }), FencepostClient.CALLBACKS);
    }

    /**
     * Renews the lease at once, for another time to live than before. A server never shortens a lease.
     *
     * @param ttl within the namespace's bounds
     * @throws LeaseLostException if the lease is or may be lost
     * @throws UnavailableException if no server confirmed it within 10 s
     * @throws FencepostException if the server refuses the time, or its answer does not confirm it
     */
    public void extend(Duration ttl) {
        check();
        FencepostClient.join(client.session.extend(lease, Times.nanos(ttl)));
    }

    /**
     * Replaces the metadata that operators see; the time to live stays as it is.
     *
     * @param metadata at most 16 entries and 4096 bytes in all
     * @throws LeaseLostException if the lease has ended
     */
    public void updateMetadata(Map<String, String> metadata) {
        var request = UpdateMetadataRequest.newBuilder().setLeaseId(lease.id).putAllMetadata(metadata);
        client.call(SessionCommand.newBuilder().setUpdateMetadata(request), (result, sent) -> null);
    }

    /**
     * Releases the lock, which yet stays taken for this time from now on, also if the process ends: for jobs that must not
     * run again too soon. It is otherwise as {@link #close()}, which does nothing then.
     *
     * @param time up to the namespace's longest time to live; on a store that cannot keep a released lock taken, at least
     *     what the lease has left
     * @throws LeaseLostException if the lease is or may be lost
     * @throws UnavailableException if no server confirmed it
     * @throws FencepostException if the server refuses the time: the lock is then free when its time to live is over
     */
    public void leaveFor(Duration time) {
        check();
        lease.keepUntil = Times.now() + Times.nanos(time);
        FencepostClient.join(release());
    }

    /**
     * Releases the lock, within 5 s or the time that the lease has left. An interrupt neither prevents this nor is it
     * lost. A second call does nothing.
     *
     * @throws LeaseLostException if the lease had been lost before
     * @throws UnavailableException if no server confirmed the release: the lock is free when its time to live is over
     */
    @Override
    public void close() {
        FencepostClient.join(release());
    }

    /** Releases the lock without waiting for that. */
    CompletableFuture<Void> release() {
        if (!isClosed.compareAndSet(false, true)) {
            return CompletableFuture.completedFuture(null);
        }
        long keepFor = lease.keepUntil - Times.now();
        var released = client.session.release(lease);
        dropped.clean();
        return keepFor <= 0 ? released : released.exceptionallyCompose(error -> {
            boolean isUnsupported = error instanceof FencepostException refused && refused.reason().equals("UNSUPPORTED");
            // A store that cannot keep the lock taken keeps the lease.
            return isUnsupported ? client.session.extend(lease, keepFor) : CompletableFuture.failedFuture(error);
        });
    }
}
