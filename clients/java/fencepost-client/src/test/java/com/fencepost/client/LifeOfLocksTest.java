package com.fencepost.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fencepost.testing.FencepostExtension;
import com.fencepost.testing.FencepostServer;
import com.fencepost.v1.LockSummary;
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.trace.TracerProvider;
import io.opentelemetry.context.propagation.ContextPropagators;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledForJreRange;
import org.junit.jupiter.api.condition.EnabledOnOs;
import org.junit.jupiter.api.condition.JRE;
import org.junit.jupiter.api.condition.OS;
import org.junit.jupiter.api.extension.ExtendWith;

/** How locks end that nobody closes, and what their users ask about them. */
@ExtendWith(FencepostExtension.class)
@Timeout(60)
class LifeOfLocksTest {
    private static final Duration TTL = Duration.ofSeconds(2);
    private static final Duration MINUTE = Duration.ofMinutes(1);

    private final FencepostServer server;
    private FencepostClient client;

    LifeOfLocksTest(FencepostServer server) {
        this.server = server;
    }

    @BeforeEach
    void connect() {
        client = FencepostClient.builder().address(server.address()).owner("test").build();
    }

    @AfterEach
    void close() {
        client.close();
    }

    private static void eventually(BooleanSupplier condition) throws InterruptedException {
        long end = System.nanoTime() + Duration.ofSeconds(20).toNanos();
        while (!condition.getAsBoolean()) {
            assertTrue(System.nanoTime() - end < 0, "the condition does not come true");
            Thread.sleep(20);
        }
    }

    private boolean isFree(String name) {
        return client.get(name).getHolderCount() == 0;
    }

    @Test
    @EnabledOnOs(OS.LINUX)
    void aSuspendOfTheMachineEndsALease() throws Exception {
        HeldLock lock = client.lock("suspended").ttl(MINUTE).acquire();
        var loss = new CompletableFuture<LeaseLostException>();
        lock.onLost(Runnable::run, loss::complete);
        var wall = Times.wall;
        var uptime = Times.uptime;
        try {
            Times.wall = () -> wall.getAsLong() + Times.seconds(120);
            assertTrue(lock.isHeld(), "a clock that was set is no suspend");
            Times.wall = () -> wall.getAsLong() + Times.seconds(240);
            Times.uptime = () -> uptime.getAsLong() + Times.seconds(120);
            assertFalse(lock.isHeld());
            assertEquals("unrenewed", loss.get(10, TimeUnit.SECONDS).lossCause());
        } finally {
            Times.wall = wall;
            Times.uptime = uptime;
        }
    }

    @Test
    void theLockOfAThreadThatHasEndedIsRenewedNoMore() throws Exception {
        var thread = new Thread(client.asLock("of a thread", TTL)::lock);
        thread.start();
        thread.join();
        assertFalse(isFree("of a thread"));
        eventually(() -> isFree("of a thread"));
    }

    @Test
    void aLockThatNothingRefersToIsRenewedNoMore() throws Exception {
        HeldLock kept = client.lock("kept").ttl(TTL).acquire();
        client.lock("dropped").ttl(TTL).acquire();
        eventually(() -> {
            System.gc();
            return isFree("dropped");
        });
        kept.check();
    }

    @Test
    void aLockStaysTakenForItsAtLeastAndNoLonger() throws Exception {
        for (Duration ttl : List.of(Duration.ofSeconds(1), MINUTE)) {
            long begin = System.nanoTime();
            client.lock("job").ttl(ttl).atLeast(Duration.ofSeconds(3)).acquire().close();
            client.lock("job").waitFor(MINUTE).acquire().close();
            long millis = Duration.ofNanos(System.nanoTime() - begin).toMillis();
            assertTrue(millis >= 2900 && millis < 20_000, millis + " ms");
        }
        var endless = client.lock("job").atLeast(Duration.ofDays(400));
        assertEquals("INVALID_FIELD", assertThrows(FencepostException.class, endless::acquire).reason());
        eventually(() -> isFree("job"));
    }

    @Test
    void aReaderSharesAndAWriterMayReadToo() throws Exception {
        var lock = client.asReadWriteLock("index", MINUTE);
        lock.readLock().lock();
        assertTrue(CompletableFuture.supplyAsync(() -> {
            boolean isRead = lock.readLock().tryLock();
            lock.readLock().unlock();
            return isRead && !lock.writeLock().tryLock();
        }).get());
        assertThrows(IllegalStateException.class, lock.writeLock()::lock);
        assertThrows(IllegalMonitorStateException.class, lock.writeLock()::unlock);
        lock.readLock().unlock();
        lock.writeLock().lock();
        lock.readLock().lock();
        lock.writeLock().unlock();
        assertFalse(CompletableFuture.supplyAsync(lock.readLock()::tryLock).get());
        lock.readLock().unlock();
        assertTrue(isFree("index"));
    }

    @Test
    void aLeaseIsExtendedAndItsTokenChecked() throws Exception {
        HeldLock lock = client.lock("extended").ttl(TTL).acquire();
        lock.extend(MINUTE);
        assertTrue(lock.remaining().compareTo(Duration.ofSeconds(40)) > 0);
        assertTrue(client.checkToken("extended", lock.token()));
        var held = assertThrows(LockHeldException.class, () -> client.lock("extended").acquire());
        assertEquals("test", held.owner().orElseThrow());
        assertTrue(held.remaining().orElseThrow().compareTo(Duration.ofSeconds(30)) > 0);
        client.forceRelease("extended", lock.token());
        assertFalse(client.checkToken("extended", lock.token()));
        assertThrows(LeaseLostException.class, () -> client.forceRelease("extended", lock.token()));
        eventually(() -> !lock.isHeld());
        assertEquals("forced", assertThrows(LeaseLostException.class, () -> lock.extend(MINUTE)).lossCause());
        client.ping(Duration.ofSeconds(10));
    }

    @Test
    void locksInUseAreListedPageByPage() throws Exception {
        var names = new ArrayList<String>();
        var locks = new ArrayList<HeldLock>();
        for (int i = 0; i < 150; i++) {
            names.add("listed/%03d".formatted(i));
            locks.add(client.lock(names.get(i)).acquire());
        }
        assertEquals(names, client.list("listed/").map(LockSummary::getName).toList());
        try (HeldLocks one = client.lockAll(List.of("single")).acquire()) {
            assertEquals(List.of("single"), client.list("single").map(LockSummary::getName).toList());
            one.check();
        }
        locks.forEach(HeldLock::release);
    }

    @Test
    void noProxySettingIsObeyed() throws Exception {
        var settings = List.of("https.proxyHost", "https.proxyPort", "http.nonProxyHosts");
        var values = List.of("127.0.0.1", "1", "nothing");
        for (int i = 0; i < settings.size(); i++) {
            System.setProperty(settings.get(i), values.get(i));
        }
        try (HeldLock lock = client.lock("direct").acquire()) {
            lock.check();
        } finally {
            settings.forEach(System::clearProperty);
        }
    }

    @Test
    void aLogHandlerOrTracerThatFailsEndsNothing() throws Exception {
        var failing = new Handler() {
            @Override
            public void publish(LogRecord logged) {
                throw new IllegalStateException("of the handler");
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        var logger = Logger.getLogger("com.fencepost.client");
        logger.addHandler(failing);
        GlobalOpenTelemetry.resetForTest();
        GlobalOpenTelemetry.set(new OpenTelemetry() {
            @Override
            public TracerProvider getTracerProvider() {
                throw new IllegalStateException("of the tracer");
            }

            @Override
            public ContextPropagators getPropagators() {
                return ContextPropagators.noop();
            }
        });
        try (HeldLock kept = client.lock("kept beside").ttl(TTL).acquire()) {
            HeldLock forced = client.lock("told").acquire();
            var loss = new CompletableFuture<LeaseLostException>();
            forced.onLost(Runnable::run, lost -> {
                loss.complete(lost);
                throw new IllegalStateException("of the callback");
            });
            client.forceRelease("told", forced.token());
            assertEquals("forced", loss.get(10, TimeUnit.SECONDS).lossCause());
            Thread.sleep(TTL.toMillis() * 3 / 2);
            kept.check();
        } finally {
            logger.removeHandler(failing);
            GlobalOpenTelemetry.resetForTest();
        }
    }

    @Test
    @EnabledForJreRange(min = JRE.JAVA_21)
    void aThousandVirtualThreadsTakeLocks() throws Exception {
        var start = Thread.class.getMethod("startVirtualThread", Runnable.class);
        var done = new ArrayList<CompletableFuture<Void>>();
        for (int i = 0; i < 1000; i++) {
            var one = new CompletableFuture<Void>();
            done.add(one);
            var lock = client.asLock("virtual-" + i % 50);
            start.invoke(null, (Runnable) () -> {
                lock.lock();
                lock.lock();
                lock.unlock();
                lock.unlock();
                one.complete(null);
            });
        }
        CompletableFuture.allOf(done.toArray(CompletableFuture<?>[]::new)).get(50, TimeUnit.SECONDS);
    }
}
