package com.fencepost.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fencepost.client.FencepostClient;
import com.fencepost.client.FencepostException;
import com.fencepost.testing.FencepostExtension;
import com.fencepost.testing.FencepostServer;
import java.time.Duration;
import java.time.Instant;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockingTaskExecutor.Task;
import net.javacrumbs.shedlock.core.LockingTaskExecutor.TaskResult;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;

@ExtendWith(FencepostExtension.class)
class FencepostLockProviderTest {
    private final FencepostServer server;
    private FencepostClient client;
    private FencepostLockProvider provider;

    FencepostLockProviderTest(FencepostServer server) {
        this.server = server;
    }

    @BeforeEach
    void connect() {
        client = FencepostClient.builder().address(server.address()).build();
        provider = new FencepostLockProvider(client, "jobs/");
    }

    @AfterEach
    void close() {
        client.close();
    }

    private static LockConfiguration task(String name, Duration atMost, Duration atLeast) {
        return new LockConfiguration(Instant.now(), name, atMost, atLeast);
    }

    private int holders(String name) {
        return client.get("jobs/" + name).getHolderCount();
    }

    @Test
    void aTaskRunsOnceAtATime() throws Throwable {
        var executor = new DefaultLockingTaskExecutor(provider);
        var configuration = task("once", Duration.ofMinutes(1), Duration.ZERO);
        TaskResult<Boolean> outer = executor.executeWithLock(
                () -> executor.executeWithLock(() -> true, task("once", Duration.ofMinutes(1), Duration.ZERO)).wasExecuted(),
                configuration);
        assertTrue(outer.wasExecuted());
        assertEquals(0, holders("once"));
        assertFalse(provider.lock(configuration).isEmpty());
        assertTrue(provider.lock(configuration).isEmpty());
    }

    @Test
    void aShortTaskLeavesItsLockForTheLeastTime() {
        provider.lock(task("least", Duration.ofMinutes(1), Duration.ofMinutes(1))).orElseThrow().unlock();
        client.close();
        connect();
        assertEquals(1, holders("least"));
        assertTrue(client.get("jobs/least").getHolders(0).getRemainingTtl().getSeconds() > 40);
    }

    @Test
    void theLockOfAShortTaskIsFreeAfterTheLeastTime() throws InterruptedException {
        long begin = System.nanoTime();
        provider.lock(task("short", Duration.ofMinutes(1), Duration.ofSeconds(2))).orElseThrow().unlock();
        while (provider.lock(task("short", Duration.ofMinutes(1), Duration.ZERO)).isEmpty()) {
            Thread.sleep(20);
        }
        long seconds = Duration.ofNanos(System.nanoTime() - begin).toSeconds();
        assertTrue(seconds >= 1 && seconds < 15, seconds + " s, and the time to live is 30 s");
    }

    @Test
    void aLeastTimeThatIsTooLongFailsBeforeTheTask() {
        var endless = task("endless", Duration.ofDays(500), Duration.ofDays(400));
        var refused = assertThrows(FencepostException.class, () -> provider.lock(endless));
        assertEquals("INVALID_FIELD", refused.reason());
        assertEquals(0, holders("endless"));
    }

    @Test
    void anUnlockWithoutAServerDoesNotHideTheFailureOfTheTask() {
        try (var stopping = FencepostServer.start();
                var other = FencepostClient.builder().address(stopping.address()).build()) {
            var executor = new DefaultLockingTaskExecutor(new FencepostLockProvider(other, ""));
            var failure = assertThrows(IllegalStateException.class, () -> executor.executeWithLock((Task) () -> {
                stopping.process().destroyForcibly();
                throw new IllegalStateException("of the task");
            }, task("outage", Duration.ofMinutes(1), Duration.ZERO)));
            assertEquals("of the task", failure.getMessage());
        }
    }

    @Test
    void anUnlockOfALostLockIsLogged() {
        var lock = provider.lock(task("lost", Duration.ofMinutes(1), Duration.ofMinutes(1))).orElseThrow();
        client.close();
        lock.unlock();
    }

    @Test
    void theLongestTimeEndsTheLockUnlessItIsExtended() throws InterruptedException {
        var lock = provider.lock(task("most", Duration.ofSeconds(2), Duration.ZERO)).orElseThrow();
        var extended = lock.extend(Duration.ofSeconds(5), Duration.ZERO).orElseThrow();
        Thread.sleep(2500);
        assertEquals(1, holders("most"));
        long end = System.nanoTime() + Duration.ofSeconds(10).toNanos();
        while (holders("most") > 0) {
            assertTrue(System.nanoTime() - end < 0);
            Thread.sleep(20);
        }
        extended.unlock();
    }
}
