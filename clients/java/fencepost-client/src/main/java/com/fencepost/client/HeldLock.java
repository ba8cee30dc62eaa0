package com.fencepost.client;

import com.fencepost.v1.LockServiceGrpc;
import com.fencepost.v1.RenewRequest;
import com.fencepost.v1.UpdateMetadataRequest;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/**
 * A held lock. Its lease is renewed until {@link #close()}, which any thread may call.
 *
 * <p>A process can be paused between {@link #check()} and a write. Where that matters, send {@link #token()} with each
 * write, and let the resource refuse a token below the highest that it has seen.
 */
public class HeldLock implements AutoCloseable {
    final FencepostClient client;
    final Lease lease;
    private final AtomicBoolean isClosed = new AtomicBoolean();

    HeldLock(FencepostClient client, Lease lease) {
        this.client = client;
        this.lease = lease;
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
        return Duration.ofNanos(Math.max(lease.left(), 0));
    }

    /**
     * Calls back once when the lease is or may be lost, at once if it is lost already, and never after {@link #close()}.
     *
     * @param executor runs the callback; a slow one delays no renewal
     * @param callback gets the loss
     */
    public void onLost(Executor executor, Consumer<? super LeaseLostException> callback) {
        isHeld();
        // An executor that blocks or runs the callback itself delays no other one.
        lease.lost.thenAcceptAsync(loss -> executor.execute(() -> callback.accept(loss)), client.callbacks);
    }

    /**
     * Replaces the metadata that operators see; the time to live stays as it is.
     *
     * @param metadata at most 16 entries and 4096 bytes in all
     * @throws LeaseLostException if the lease has ended
     */
    public void updateMetadata(Map<String, String> metadata) {
        var request = UpdateMetadataRequest.newBuilder().setLeaseId(lease.id).putAllMetadata(metadata).build();
        client.call(LockServiceGrpc.getUpdateMetadataMethod(), request);
    }

    /**
     * Ends the renewals and leaves the lock held for at least this time and what the lease has left, also if the process
     * ends: for jobs that must not run again too soon. {@link #close()} does nothing then. If this fails, the renewals have
     * ended too, and the lock is free when its time to live is over.
     *
     * @param time within the namespace's bounds for the time to live
     * @throws LeaseLostException if the lease is or may be lost
     * @throws UnavailableException if no server confirmed the time
     * @throws FencepostException if the server refuses the time, or its answer does not confirm it
     */
    public void leaveFor(Duration time) {
        check();
        var request = RenewRequest.newBuilder().setLeaseId(lease.id).setTtl(Times.wire(time)).build();
        try {
            if (!client.call(LockServiceGrpc.getRenewMethod(), request).hasLease()) {
                throw FencepostException.incomplete();
            }
        } finally {
            if (isClosed.compareAndSet(false, true)) {
                client.forget(lease);
            }
        }
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
        return client.release(lease);
    }
}
