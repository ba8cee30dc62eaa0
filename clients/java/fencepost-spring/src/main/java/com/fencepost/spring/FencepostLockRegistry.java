package com.fencepost.spring;

import com.fencepost.client.FencepostClient;
import com.fencepost.client.FencepostLock;
import com.fencepost.client.LeaseLostException;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/**
 * A registry of locks of a Fencepost server, which are renewed while they are held, whatever a task takes. They are
 * re-entrant for each thread.
 *
 * <p>{@code unlock()} throws {@link ConcurrentModificationException} if the lock had been lost, as the registries of
 * Spring Integration do: what it protects may have been changed by others.
 */
public final class FencepostLockRegistry implements RenewableLockRegistry<DistributedLock> {
    private final FencepostClient client;
    private final String prefix;
    private final Duration ttl;

    /**
     * Makes a registry.
     *
     * @param client is not closed by the registry
     * @param prefix comes before each key in the name of its lock, such as {@code orders/}
     * @param ttl how long a lock stays held when its process ends without releasing it, within the namespace's bounds; null:
     *     the namespace's default
     */
    public FencepostLockRegistry(FencepostClient client, String prefix, Duration ttl) {
        this.client = client;
        this.prefix = prefix;
        this.ttl = ttl;
    }

    /**
     * {@return the lock for a key}
     *
     * @param lockKey its text is the name
     */
    @Override
    public DistributedLock obtain(Object lockKey) {
        return new RegistryLock(lock(lockKey));
    }

    /**
     * Checks that this thread holds the lock, which is renewed anyway.
     *
     * @param lockKey the key
     * @throws IllegalMonitorStateException if this thread does not hold it
     * @throws ConcurrentModificationException if it is or may be lost
     */
    @Override
    public void renewLock(Object lockKey) {
        guard(lock(lockKey).held()::check);
    }

    /**
     * Renews the lock at once, for another time to live. A server never shortens a lease.
     *
     * @param lockKey the key
     * @param customTtl within the namespace's bounds
     * @throws IllegalMonitorStateException if this thread does not hold it
     * @throws ConcurrentModificationException if it is or may be lost
     */
    @Override
    public void renewLock(Object lockKey, Duration customTtl) {
        var held = lock(lockKey).held();
        guard(() -> held.extend(customTtl));
    }

    private FencepostLock lock(Object lockKey) {
        return client.asLock(prefix + lockKey, ttl);
    }

    private static void guard(Runnable use) {
        try {
            use.run();
        } catch (LeaseLostException lost) {
            throw new ConcurrentModificationException("the lock was lost: " + lost.getMessage(), lost);
        }
    }

    private record RegistryLock(FencepostLock delegate) implements DistributedLock {
        @Override
        public void lock() {
            delegate.lock();
        }

        @Override
        public void lock(Duration timeToLive) {
            delegate.lock(timeToLive);
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            delegate.lockInterruptibly();
        }

        @Override
        public boolean tryLock() {
            return delegate.tryLock();
        }

        @Override
        public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
            return delegate.tryLock(time, unit);
        }

        @Override
        public boolean tryLock(Duration waitTime, Duration timeToLive) throws InterruptedException {
            return delegate.tryLock(waitTime.isNegative() ? Duration.ZERO : waitTime, timeToLive);
        }

        @Override
        public void unlock() {
            guard(delegate::unlock);
        }

        @Override
        public Condition newCondition() {
            return delegate.newCondition();
        }
    }
}
