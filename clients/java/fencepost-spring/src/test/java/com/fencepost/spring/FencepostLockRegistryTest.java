package com.fencepost.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fencepost.client.FencepostClient;
import com.fencepost.testing.FencepostExtension;
import com.fencepost.testing.FencepostServer;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;

@ExtendWith(FencepostExtension.class)
class FencepostLockRegistryTest {
    private static final Duration TTL = Duration.ofSeconds(3);

    @Test
    void aLockIsHeldAndRenewedWhileATaskRuns(FencepostServer server) throws Exception {
        try (var client = FencepostClient.builder().address(server.address()).build();
                var other = FencepostClient.builder().address(server.address()).build()) {
            var registry = new FencepostLockRegistry(client, "orders/", TTL);
            Lock elsewhere = new FencepostLockRegistry(other, "orders/", TTL).obtain("a");
            int result = registry.executeLocked("a", () -> {
                Thread.sleep(4500);
                assertFalse(elsewhere.tryLock(10, TimeUnit.MILLISECONDS));
                assertTrue(registry.obtain("a").tryLock());
                registry.obtain("a").unlock();
                return 7;
            });
            assertEquals(7, result);
            assertEquals(0, client.get("orders/a").getHolderCount());
        }
    }

    @Test
    void anyTimeToWaitIsAccepted(FencepostServer server) throws Exception {
        try (var client = FencepostClient.builder().address(server.address()).build()) {
            Lock lock = new FencepostLockRegistry(client, "", TTL).obtain("long");
            for (TimeUnit unit : TimeUnit.values()) {
                assertTrue(lock.tryLock(Long.MAX_VALUE, unit), unit.name());
                lock.unlock();
            }
            assertTrue(lock.tryLock(Long.MIN_VALUE, TimeUnit.DAYS));
            lock.unlock();
        }
    }

    @Test
    void aLockHasItsOwnTimeToLive(FencepostServer server) throws Exception {
        try (var client = FencepostClient.builder().address(server.address()).build()) {
            var registry = new FencepostLockRegistry(client, "", TTL);
            var lock = registry.obtain("ttl");
            assertTrue(lock.tryLock(Duration.ofSeconds(1), Duration.ofMinutes(1)));
            assertTrue(client.get("ttl").getHolders(0).getRemainingTtl().getSeconds() > 30);
            registry.renewLock("ttl", Duration.ofMinutes(5));
            assertTrue(client.get("ttl").getHolders(0).getRemainingTtl().getSeconds() > 200);
            lock.unlock();
            lock.lock(Duration.ofMinutes(1));
            assertTrue(client.get("ttl").getHolders(0).getRemainingTtl().getSeconds() > 30);
            lock.unlock();
        }
    }

    @Test
    void aLossIsReportedAsOtherRegistriesReportIt() {
        try (var server = FencepostServer.start();
                var client = FencepostClient.builder().address(server.address()).build()) {
            var registry = new FencepostLockRegistry(client, "", TTL);
            assertThrows(IllegalMonitorStateException.class, () -> registry.renewLock("b"));
            Lock lock = registry.obtain("b");
            lock.lock();
            registry.renewLock("b");
            server.process().destroyForcibly();
            assertThrows(ConcurrentModificationException.class, () -> {
                while (true) {
                    Thread.sleep(50);
                    registry.renewLock("b");
                }
            });
            assertThrows(ConcurrentModificationException.class, lock::unlock);
        }
    }
}
