package com.fencepost.shedlock;

import com.fencepost.client.FencepostClient;
import com.fencepost.client.HeldLock;
import com.fencepost.client.LeaseLostException;
import com.fencepost.client.UnavailableException;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * A provider of locks of a Fencepost server. A lock is renewed while its task runs, so that the lock of a process that dies
 * is free after the namespace's default time to live; {@code lockAtMostFor} ends the lock of a task that hangs.
 *
 * <p>After a task that ends before {@code lockAtLeastFor}, the lock stays taken until then, also when the process ends, and
 * no longer. A time above the namespace's longest time to live is refused before the task runs.
 */
public final class FencepostLockProvider implements ExtensibleLockProvider {
    private static final System.Logger LOG = System.getLogger("com.fencepost.shedlock");

    private final FencepostClient client;
    private final String prefix;

    /**
     * Makes a provider.
     *
     * @param client is not closed by the provider
     * @param prefix comes before the name of each task in the name of its lock, such as {@code jobs/}
     */
    public FencepostLockProvider(FencepostClient client, String prefix) {
        this.client = client;
        this.prefix = prefix;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        try {
            return client.lock(prefix + configuration.getName()).atLeast(configuration.getLockAtLeastFor()).tryAcquire()
                    .map(lock -> new TaskLock(configuration, lock));
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            return Optional.empty();
        }
    }

    private static final class TaskLock extends AbstractSimpleLock {
        private final HeldLock lock;
        /** Releases the lock when its longest time is over. */
        private final CompletableFuture<Void> limit;

        TaskLock(LockConfiguration configuration, HeldLock lock) {
            super(configuration);
            this.lock = lock;
            long left = Duration.between(Instant.now(), configuration.getLockAtMostUntil()).toMillis();
            limit = new CompletableFuture<Void>().completeOnTimeout(null, Math.max(left, 0), TimeUnit.MILLISECONDS);
            limit.thenRunAsync(lock::close);
        }

        @Override
        protected void doUnlock() {
            Duration left = Duration.between(Instant.now(), lockConfiguration.getLockAtLeastUntil());
            try {
                lock.leaveFor(left.isNegative() ? Duration.ZERO : left);
            } catch (LeaseLostException | UnavailableException failure) {
                // Thrown, it would hide the task's own exception.
                LOG.log(Level.WARNING, "the lock of " + lockConfiguration.getName() + " was not released as asked", failure);
            }
            limit.cancel(false);
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration extended) {
            limit.cancel(false);
            return lock.isHeld() ? Optional.of(new TaskLock(extended, lock)) : Optional.empty();
        }
    }
}
