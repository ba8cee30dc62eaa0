package com.fencepost.boot;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fencepost.client.ClientClosedException;
import com.fencepost.client.FencepostClient;
import com.fencepost.spring.FencepostLockRegistry;
import com.fencepost.testing.FencepostServer;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.boot.health.contributor.Status;
import org.springframework.boot.test.context.FilteredClassLoader;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.integration.support.locks.LockRegistry;

class FencepostAutoConfigurationTest {
    private final ApplicationContextRunner context =
            new ApplicationContextRunner().withConfiguration(AutoConfigurations.of(FencepostAutoConfiguration.class));

    @Test
    void aContextHasAClientARegistryAndItsHealth() {
        var made = new AtomicReference<FencepostClient>();
        try (var server = FencepostServer.start()) {
            context.withPropertyValues("fencepost.address=" + server.address(), "fencepost.owner=boot",
                    "fencepost.lock-registry.prefix=orders/", "fencepost.lock-registry.ttl=1m").run(bean -> {
                        made.set(bean.getBean(FencepostClient.class));
                        var lock = bean.getBean(FencepostLockRegistry.class).obtain("a");
                        lock.lock();
                        var holder = made.get().get("orders/a").getHolders(0);
                        assertEquals("boot", holder.getOwner());
                        assertTrue(holder.getRemainingTtl().getSeconds() > 40);
                        lock.unlock();
                        var health = bean.getBean(HealthIndicator.class);
                        assertEquals(Status.UP, health.health().getStatus());
                        server.process().destroyForcibly();
                        server.process().onExit().join();
                        assertEquals(Status.DOWN, health.health().getStatus());
                    });
            assertThrows(ClientClosedException.class, () -> made.get().lock("a").acquire());
        }
    }

    @Test
    void whatTheProgramHasIsNotMade() {
        try (var own = FencepostClient.builder().build()) {
            context.withBean(FencepostClient.class, () -> own).withPropertyValues("management.health.fencepost.enabled=false")
                    .withClassLoader(new FilteredClassLoader(LockRegistry.class.getPackageName())).run(bean -> {
                        assertSame(own, bean.getBean(FencepostClient.class));
                        assertTrue(bean.getBeansOfType(HealthIndicator.class).isEmpty());
                        assertTrue(bean.getBeansOfType(FencepostLockRegistry.class).isEmpty());
                    });
        }
    }
}
