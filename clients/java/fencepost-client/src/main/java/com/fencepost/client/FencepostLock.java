package com.fencepost.client;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;

/**
 * A lock that belongs to the thread that took it, and that this thread may take again. All locks of this name and of one
 * client share their counts. Its methods throw what {@link LockRequest#acquire()} throws, beside what {@link Lock} says.
 *
 * <p>The lock of a thread that has ended is renewed no more, and the log says so.
 */
public final class FencepostLock implements Lock {
    record ReadWrite(FencepostLock readLock, FencepostLock writeLock) implements ReadWriteLock {}

    /** What a thread holds. Only that thread uses it. */
    static final class Hold {
        final HeldLock lock;
        final boolean isShared;
        int count = 1;

        Hold(HeldLock lock, boolean isShared) {
            this.lock = lock;
            this.isShared = isShared;
        }
    }

    private final FencepostClient client;
    private final String name;
    private final Duration ttl;
    private final boolean isShared;

    FencepostLock(FencepostClient client, String name, Duration ttl, boolean isShared) {
        this.client = client;
        this.name = name;
        this.ttl = ttl;
        this.isShared = isShared;
    }

    /**
     * {@return the lock as this thread holds it, for its token and its loss}
     *
     * @throws IllegalMonitorStateException if this thread does not hold it
     */
    public HeldLock held() {
        return hold().lock;
    }

    /**
     * Waits until the lock is granted. An interrupt does not end the wait.
     *
     * @throws IllegalStateException if this thread has the read lock and this is the write lock
     */
    @Override
    public void lock() {
        lock(ttl);
    }

    /**
     * As {@link #lock()}, with a time to live, which a thread that has the lock does not change.
     *
     * @param timeToLive within the namespace's bounds
     */
    public void lock(Duration timeToLive) {
        if (!reenter()) {
            enter(request(timeToLive).waitForever().acquireUninterruptibly());
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        if (!reenter()) {
            enter(request(ttl).waitForever().acquire());
        }
    }

    @Override
    public boolean tryLock() {
        try {
            if (!reenter()) {
                enter(request(ttl).acquireUninterruptibly());
            }
            return true;
        } catch (LockHeldException held) {
            return false;
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return tryLock(Duration.ofNanos(unit.toNanos(Math.max(time, 0))), ttl);
    }

    /**
     * As {@link #tryLock(long, TimeUnit)}, with a time to live, which a thread that has the lock does not change.
     *
     * @param wait the longest wait; zero: a try
     * @param timeToLive within the namespace's bounds
     * @return whether the lock was granted
     * @throws InterruptedException if the thread is interrupted; it has then left the queue
     */
    public boolean tryLock(Duration wait, Duration timeToLive) throws InterruptedException {
        if (!reenter()) {
            var granted = request(timeToLive).waitFor(wait).tryAcquire();
            granted.ifPresent(this::enter);
            return granted.isPresent();
        }
        return true;
    }

    /**
     * Releases one hold of this thread, and the lock with the last one.
     *
     * @throws IllegalMonitorStateException if this thread does not hold it
     * @throws LeaseLostException if the lease had been lost
     * @throws UnavailableException if no server confirmed the release
     */
    @Override
    public void unlock() {
        Hold hold = hold();
        if (--hold.count == 0) {
            client.holds.get().remove(name);
            hold.lock.close();
        }
    }

    /** Throws {@link UnsupportedOperationException}: there are no conditions. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of Fencepost has no conditions");
    }

    private LockRequest<HeldLock> request(Duration timeToLive) {
        var request = isShared ? client.lock(name).shared() : client.lock(name);
        return timeToLive == null ? request : request.ttl(timeToLive);
    }

    private Hold hold() {
        Hold hold = client.holds.get().get(name);
        if (hold == null || hold.isShared && !isShared) {
            throw new IllegalMonitorStateException("this thread does not hold " + name);
        }
        return hold;
    }

    private boolean reenter() {
        Hold hold = client.holds.get().get(name);
        if (hold == null) {
            return false;
        }
        if (hold.isShared && !isShared) {
            throw new IllegalStateException("this thread has the read lock of " + name + ", which cannot become the write lock");
        }
        hold.lock.check();
        hold.count++;
        return true;
    }

    private void enter(HeldLock lock) {
        lock.lease.thread = Thread.currentThread();
        client.holds.get().put(name, new Hold(lock, isShared));
    }
}
