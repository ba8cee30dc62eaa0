package com.fencepost.client;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock that belongs to the thread that took it, and that this thread may take again. All locks of this name and of one
 * client share their counts. Its methods throw what {@link LockRequest#acquire()} throws, beside what {@link Lock} says.
 */
public final class FencepostLock implements Lock {
    record Key(String name, Thread thread) {}

    /** What a thread holds. Only that thread uses it. */
    static final class Hold {
        final HeldLock lock;
        int count = 1;

        Hold(HeldLock lock) {
            this.lock = lock;
        }
    }

    private final FencepostClient client;
    private final String name;
    private final Duration ttl;

    FencepostLock(FencepostClient client, String name, Duration ttl) {
        this.client = client;
        this.name = name;
        this.ttl = ttl;
    }

    /**
     * {@return the lock as this thread holds it, for its token and its loss}
     *
     * @throws IllegalMonitorStateException if this thread does not hold it
     */
    public HeldLock held() {
        return hold().lock;
    }

    /** Waits until the lock is granted. An interrupt does not end the wait. */
    @Override
    public void lock() {
        if (!reenter()) {
            enter(request().waitForever().acquireUninterruptibly());
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        if (!reenter()) {
            enter(request().waitForever().acquire());
        }
    }

    @Override
    public boolean tryLock() {
        try {
            if (!reenter()) {
                enter(request().acquireUninterruptibly());
            }
            return true;
        } catch (LockHeldException held) {
            return false;
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        if (!reenter()) {
            var granted = request().waitFor(Duration.ofNanos(unit.toNanos(Math.max(time, 0)))).tryAcquire();
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
            client.holds.remove(key());
            hold.lock.close();
        }
    }

    /** Throws {@link UnsupportedOperationException}: there are no conditions. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of Fencepost has no conditions");
    }

    private LockRequest<HeldLock> request() {
        var request = client.lock(name);
        return ttl == null ? request : request.ttl(ttl);
    }

    private Key key() {
        return new Key(name, Thread.currentThread());
    }

    private Hold hold() {
        Hold hold = client.holds.get(key());
        if (hold == null) {
            throw new IllegalMonitorStateException("this thread does not hold " + name);
        }
        return hold;
    }

    private boolean reenter() {
        Hold hold = client.holds.get(key());
        if (hold != null) {
            hold.lock.check();
            hold.count++;
        }
        return hold != null;
    }

    private void enter(HeldLock lock) {
        client.holds.put(key(), new Hold(lock));
    }
}
