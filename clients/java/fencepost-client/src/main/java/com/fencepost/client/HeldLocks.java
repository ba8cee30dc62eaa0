package com.fencepost.client;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Several locks that were taken together, in the order of their names in the request. */
public final class HeldLocks implements AutoCloseable {
    private final List<HeldLock> locks;

    HeldLocks(List<HeldLock> locks) {
        this.locks = locks;
    }

    /** {@return the locks, each with a fencing token of its own} */
    public List<HeldLock> locks() {
        return locks;
    }

    /**
     * Checks all locks.
     *
     * @throws LeaseLostException if one is or may be lost
     */
    public void check() {
        locks.forEach(HeldLock::check);
    }

    /** Releases all locks, as {@link HeldLock#close()} releases one, and throws the first failure after that. */
    @Override
    public void close() {
        var releases = locks.stream().map(HeldLock::release).toArray(CompletableFuture<?>[]::new);
        FencepostClient.join(CompletableFuture.allOf(releases));
    }
}
