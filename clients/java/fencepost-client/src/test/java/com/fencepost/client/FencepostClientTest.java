package com.fencepost.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fencepost.testing.FencepostExtension;
import com.fencepost.testing.FencepostServer;
import com.fencepost.v1.AdminServiceGrpc;
import com.fencepost.v1.ForceReleaseRequest;
import com.fencepost.v1.LockState;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.Status;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.ExtendWith;

@ExtendWith(FencepostExtension.class)
@Timeout(40)
class FencepostClientTest {
    private static final Duration WAIT = Duration.ofSeconds(10);

    private final FencepostServer server;
    private FencepostClient client;

    FencepostClientTest(FencepostServer server) {
        this.server = server;
    }

    @BeforeEach
    void connect() {
        client = at(server.address());
    }

    @AfterEach
    void close() {
        client.close();
    }

    private static FencepostClient at(String address) {
        return FencepostClient.builder().address(address).owner("test").build();
    }

    private static Duration seconds(long seconds) {
        return Duration.ofSeconds(seconds);
    }

    private static void eventually(BooleanSupplier condition) throws InterruptedException {
        long end = System.nanoTime() + WAIT.toNanos();
        while (!condition.getAsBoolean()) {
            assertTrue(System.nanoTime() - end < 0, "the condition does not come true");
            Thread.sleep(10);
        }
    }

    private boolean isFree(String name) {
        LockState lock = client.get(name);
        return lock.getHolderCount() == 0 && lock.getWaiterCount() == 0;
    }

    private void force(String name, long token) {
        var channel = Grpc.newChannelBuilder(server.address(), InsecureChannelCredentials.create()).build();
        AdminServiceGrpc.newBlockingStub(channel).forceRelease(ForceReleaseRequest.newBuilder()
                .setNamespace("default").setName(name).setFencingToken(token).build());
        channel.shutdownNow();
    }

    @Test
    void aLockIsRenewedUntilItIsClosed() throws Exception {
        HeldLock lock = client.lock("renewed").ttl(seconds(2)).metadata("job", "nightly").acquire();
        Thread.sleep(3000);
        assertEquals(lock.token(), lock.check());
        assertTrue(lock.remaining().compareTo(seconds(2)) <= 0);
        assertEquals("nightly", client.get("renewed").getHolders(0).getMetadataOrThrow("job"));
        lock.updateMetadata(Map.of("job", "daily"));
        assertEquals("daily", client.get("renewed").getHolders(0).getMetadataOrThrow("job"));
        assertThrows(LockHeldException.class, () -> client.lock("renewed").acquire());
        assertEquals(Optional.empty(), client.lock("renewed").waitFor(Duration.ofMillis(100)).tryAcquire());
        lock.close();
        lock.close();
        assertTrue(isFree("renewed"));
        assertThrows(LeaseLostException.class, lock::check);
    }

    @Test
    void modesShareALock() throws Exception {
        try (HeldLock one = client.lock("config").shared().acquire(); HeldLock two = client.lock("config").shared().acquire()) {
            assertThrows(LockHeldException.class, () -> client.lock("config").acquire());
            assertTrue(one.isHeld() && two.isHeld());
        }
        try (HeldLock one = client.semaphore("gpu", 3).acquire(); HeldLock two = client.lock("gpu").permits(2, 3).acquire()) {
            assertThrows(LockHeldException.class, () -> client.semaphore("gpu", 3).acquire());
            assertTrue(one.token() < two.token());
        }
    }

    @Test
    void severalLocksAreTakenTogetherOrNotAtAll() throws Exception {
        try (HeldLocks locks = client.lockAll(List.of("account/b", "account/a")).waitFor(seconds(5)).acquire()) {
            locks.check();
            assertEquals(List.of("account/b", "account/a"), locks.locks().stream().map(HeldLock::name).toList());
            assertThrows(LockHeldException.class, () -> client.lockAll(List.of("account/a", "account/c")).acquire());
            assertTrue(isFree("account/c"));
        }
        assertTrue(isFree("account/a") && isFree("account/b"));
    }

    @Test
    void anInterruptedWaitLeavesTheQueue() throws Exception {
        try (HeldLock held = client.lock("queue").acquire()) {
            var interrupted = new CompletableFuture<Boolean>();
            var thread = new Thread(() -> {
                try {
                    client.lock("queue").waitForever().acquire();
                } catch (InterruptedException interrupt) {
                    interrupted.complete(true);
                }
            });
            thread.start();
            eventually(() -> client.get("queue").getWaiterCount() == 1);
            thread.interrupt();
            assertTrue(interrupted.get(5, TimeUnit.SECONDS));
            eventually(() -> client.get("queue").getWaiterCount() == 0);
            assertTrue(held.isHeld());
        }
    }

    @Test
    void aCancelledOrTimedOutFutureLeavesTheQueue() throws Exception {
        try (HeldLock held = client.lock("later").acquire()) {
            var later = client.lock("later").waitForever().acquireAsync();
            eventually(() -> client.get("later").getWaiterCount() == 1);
            later.cancel(false);
            assertThrows(CancellationException.class, later::join);
            client.lock("later").waitForever().acquireAsync().orTimeout(300, TimeUnit.MILLISECONDS)
                    .exceptionally(timeout -> null).join();
            eventually(() -> client.get("later").getWaiterCount() == 0);
            assertTrue(held.isHeld());
        }
        client.lock("later").waitFor(seconds(5)).acquireAsync().get().close();
    }

    @Test
    void aFutureThatItsUserCompletesLeavesNoLock() throws Exception {
        try (HeldLock held = client.lock("value").acquire()) {
            assertNull(client.lock("value").waitForever().acquireAsync()
                    .completeOnTimeout(null, 300, TimeUnit.MILLISECONDS).join());
            eventually(() -> client.get("value").getWaiterCount() == 0);
            var other = client.lock("value").waitForever().acquireAsync();
            other.complete(held);
            eventually(() -> client.get("value").getWaiterCount() == 0);
            assertTrue(held.isHeld());
        }
        eventually(() -> isFree("value"));
    }

    @Test
    void noLockStaysHeldByAcquiresThatAreCancelledAsTheyAreGranted() throws Exception {
        for (int i = 0; i < 200; i++) {
            var acquiring = client.lock("storm-" + i).ttl(seconds(60)).waitFor(seconds(5)).acquireAsync();
            if (i % 2 == 0) {
                Thread.sleep(0, 50_000 * (i % 20));
            }
            acquiring.cancel(false);
            acquiring.handle((lock, error) -> lock).thenAccept(lock -> {
                if (lock != null) {
                    lock.close();
                }
            });
        }
        for (int i = 0; i < 200; i++) {
            String name = "storm-" + i;
            eventually(() -> isFree(name));
        }
    }

    @Test
    void closeOnAnInterruptedThreadReleasesAndKeepsTheInterrupt() throws Exception {
        HeldLock lock = client.lock("interrupted").ttl(seconds(60)).acquire();
        Thread.currentThread().interrupt();
        lock.close();
        assertTrue(Thread.interrupted());
        assertTrue(isFree("interrupted"));
    }

    @Test
    void theNamespaceThatIsAskedForIsUsed() {
        try (var other = FencepostClient.builder().address(server.address()).namespace("other").build()) {
            var refused = assertThrows(FencepostException.class, () -> other.lock("x").acquire());
            assertEquals("NAMESPACE_NOT_FOUND", refused.reason());
            assertEquals(Status.Code.NOT_FOUND, refused.code());
        }
    }

    @Test
    void aCallbackThatBlocksDelaysNeitherRenewalsNorOtherCallbacks() throws Exception {
        var blocked = new CountDownLatch(1);
        try (HeldLock other = client.lock("kept").ttl(seconds(2)).acquire()) {
            HeldLock forced = client.lock("forced").ttl(seconds(2)).acquire();
            forced.onLost(Runnable::run, loss -> {
                try {
                    blocked.await();
                } catch (InterruptedException end) {
                    Thread.currentThread().interrupt();
                }
            });
            Thread.sleep(800);
            force("forced", forced.token());
            eventually(() -> !forced.isHeld());
            Thread.sleep(3000);
            other.check();
            var causes = new LinkedBlockingQueue<String>();
            HeldLock second = client.lock("second").ttl(seconds(2)).acquire();
            second.onLost(ForkJoinPool.commonPool(), loss -> causes.add(loss.lossCause()));
            Thread.sleep(800);
            force("second", second.token());
            assertEquals("forced", causes.poll(5, TimeUnit.SECONDS));
            var closed = assertThrows(LeaseLostException.class, second::close);
            assertEquals("forced", closed.lossCause());
        } finally {
            blocked.countDown();
        }
    }

    @Test
    void aSilentConnectionIsReplacedBeforeALeaseIsLost() throws Exception {
        try (var proxy = new Proxy(server.address()); var through = at(proxy.address())) {
            HeldLock lock = through.lock("silent").ttl(seconds(3)).acquire();
            Thread.sleep(1500);
            proxy.silenceOpenConnections();
            Thread.sleep(5000);
            lock.check();
            lock.close();
        }
    }

    @Test
    void theTimeOfConnectingIsNoTimeOfTheLease() throws Exception {
        try (var proxy = new Proxy(server.address()); var through = at(proxy.address())) {
            proxy.delayConnections(3000);
            try (HeldLock lock = through.lock("slow").ttl(seconds(4)).acquire()) {
                assertTrue(lock.remaining().compareTo(seconds(2)) > 0, lock.remaining() + " are left");
            }
        }
    }

    @Test
    void aLossIsKnownByTheClockAndReported() throws Exception {
        try (var proxy = new Proxy(server.address()); var through = at(proxy.address())) {
            HeldLock lock = through.lock("lost").ttl(seconds(2)).acquire();
            var loss = new CompletableFuture<LeaseLostException>();
            lock.onLost(ForkJoinPool.commonPool(), loss::complete);
            proxy.silence();
            assertEquals("unrenewed", loss.get(5, TimeUnit.SECONDS).lossCause());
            assertFalse(lock.isHeld());
            assertThrows(LeaseLostException.class, lock::check);
            var closed = assertThrows(LeaseLostException.class, lock::close);
            assertEquals("unrenewed", closed.lossCause());
        }
        // The client had stopped before another one can hold it.
        client.lock("lost").waitFor(WAIT).acquire().close();
    }

    @Test
    void manyLongNamesAreKept() throws Exception {
        var acquiring = IntStream.range(0, 120).mapToObj(i -> ("%03d-" + "é".repeat(254)).formatted(i))
                .map(name -> client.lock(name).ttl(seconds(4)).acquireAsync()).toList();
        var locks = new ArrayList<HeldLock>();
        for (var one : acquiring) {
            locks.add(one.get());
        }
        Thread.sleep(6000);
        locks.forEach(HeldLock::check);
        locks.parallelStream().forEach(HeldLock::close);
    }

    @Test
    void aDeadFirstAddressIsPassedOver() throws Exception {
        try (var failover = at("127.0.0.1:1," + server.address()); HeldLock lock = failover.lock("failover").acquire()) {
            lock.check();
        }
        try (var dead = at("127.0.0.1:1")) {
            assertThrows(UnavailableException.class, () -> dead.lock("x").acquire());
            assertThrows(UnavailableException.class, () -> dead.lock("x").waitFor(Duration.ofMillis(500)).acquire());
        }
    }

    @Test
    void aThreadMayTakeItsLockAgainAndOthersMayNot() throws Exception {
        var lock = client.asLock("juc", seconds(5));
        lock.lock();
        assertTrue(client.asLock("juc").tryLock());
        var other = CompletableFuture.supplyAsync(lock::tryLock);
        assertFalse(other.get());
        assertThrows(ExecutionException.class, () -> CompletableFuture.runAsync(lock::unlock).get());
        long token = lock.held().check();
        lock.unlock();
        assertEquals(token, lock.held().check());
        lock.unlock();
        assertTrue(isFree("juc"));
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertTrue(lock.tryLock(1, TimeUnit.SECONDS));
        lock.unlock();
    }

    @Test
    void anUninterruptibleLockKeepsTheInterrupt() throws Exception {
        HeldLock held = client.lock("uninterruptible").acquire();
        var flag = new CompletableFuture<Boolean>();
        var thread = new Thread(() -> {
            var lock = client.asLock("uninterruptible");
            lock.lock();
            lock.unlock();
            flag.complete(Thread.interrupted());
        });
        thread.start();
        eventually(() -> client.get("uninterruptible").getWaiterCount() == 1);
        thread.interrupt();
        held.close();
        assertTrue(flag.get(5, TimeUnit.SECONDS));
    }

    @Test
    void leadersFollowEachOtherAndObserversSeeThem() throws Exception {
        var election = client.election("mailer");
        var seen = new LinkedBlockingQueue<String>();
        var deposed = new LinkedBlockingQueue<String>();
        try (var observed = election.observe(ForkJoinPool.commonPool(),
                leader -> seen.add(leader.map(one -> one.getValue()).orElse("-")))) {
            Leadership first = election.campaign("a").ttl(seconds(5)).acquire();
            eventually(() -> seen.contains("a"));
            var elected = new LinkedBlockingQueue<Leadership>();
            Registration candidate = election.lead(election.campaign("b").ttl(seconds(5)), ForkJoinPool.commonPool(),
                    elected::add, loss -> deposed.add(loss.lossCause()));
            first.proclaim("a2");
            eventually(() -> seen.contains("a2"));
            assertEquals("a2", election.leader().orElseThrow().getValue());
            first.close();
            Leadership second = elected.poll(10, TimeUnit.SECONDS);
            eventually(() -> seen.contains("b"));
            Thread.sleep(800);
            force("mailer", second.token());
            assertEquals("forced", deposed.poll(10, TimeUnit.SECONDS));
            assertTrue(elected.poll(10, TimeUnit.SECONDS).token() > second.token());
            candidate.close();
            assertFalse(observed.ended().isDone());
        }
        eventually(() -> isFree("mailer"));
    }

    @Test
    void aLeaderThatFailsResigns() throws Exception {
        var terms = new CopyOnWriteArrayList<Long>();
        var election = client.election("failing");
        try (Registration candidate = election.lead(election.campaign(""), ForkJoinPool.commonPool(), leadership -> {
            terms.add(leadership.token());
            throw new IllegalStateException("the work fails");
        }, loss -> {})) {
            eventually(() -> terms.size() >= 2);
            assertFalse(candidate.ended().isDone());
        }
    }

    @Test
    void aWatchShowsChanges() throws Exception {
        var changes = new LinkedBlockingQueue<String>();
        try (Registration watch = client.watch("watched", ForkJoinPool.commonPool(),
                event -> changes.add(event.hasState() ? "state" : event.getChange().getKind().name()))) {
            assertEquals("state", changes.poll(10, TimeUnit.SECONDS));
            client.lock("watched").acquire().close();
            eventually(() -> changes.contains("CHANGE_KIND_RELEASED"));
            assertFalse(watch.ended().isDone());
        }
    }

    @Test
    void aLockCanBeLeftForATime() throws Exception {
        HeldLock lock = client.lock("nightly").ttl(seconds(1)).acquire();
        lock.leaveFor(seconds(3));
        lock.close();
        Thread.sleep(1500);
        assertThrows(LockHeldException.class, () -> client.lock("nightly").acquire());
        client.lock("nightly").waitFor(seconds(5)).acquire().close();
    }

    @Test
    void aLockThatCannotBeLeftIsRenewedNoMore() throws Exception {
        HeldLock lock = client.lock("refused").ttl(seconds(1)).acquire();
        var refused = assertThrows(FencepostException.class, () -> lock.leaveFor(Duration.ofDays(400)));
        assertEquals("INVALID_FIELD", refused.reason());
        eventually(() -> isFree("refused"));
    }

    @Test
    void closeReleasesWhatIsHeldAndEndsWhatWaits() throws Exception {
        HeldLock held = client.lock("closing").ttl(seconds(60)).acquire();
        var loss = new CompletableFuture<LeaseLostException>();
        held.onLost(Runnable::run, loss::complete);
        var waiting = client.lock("closing").waitForever().acquireAsync();
        eventually(() -> client.get("closing").getWaiterCount() == 1);
        client.close();
        client.close();
        assertEquals("closed", loss.get(5, TimeUnit.SECONDS).lossCause());
        assertTrue(assertThrows(ExecutionException.class, waiting::get).getCause() instanceof ClientClosedException);
        assertThrows(ClientClosedException.class, () -> client.lock("closing").acquire());
        assertEquals("closed", assertThrows(LeaseLostException.class, held::close).lossCause());
        eventually(() -> Thread.getAllStackTraces().keySet().stream()
                .noneMatch(thread -> thread.getName().equals("fencepost-session")));
        connect();
        eventually(() -> isFree("closing"));
    }

    @Test
    void addressesThatAreNotAreRefused() {
        for (String bad : List.of("a", "a:99999", "ftp://a:1", "https://unix:/a", "a:1,,b:2", "")) {
            assertThrows(IllegalArgumentException.class, () -> FencepostClient.builder().address(bad).build(), bad);
        }
        var file = Path.of("/dev/null");
        for (var unencrypted : List.of(remote().bearerFile(file), remote().tls(file), remote().tls(file, file, file))) {
            assertTrue(assertThrows(IllegalArgumentException.class, unencrypted::build).getMessage().contains("https://"));
        }
        var local = FencepostClient.builder().address("localhost:1,unix:/none").tls(file, file, file);
        local.build().close();
        for (var unusable : List.of(file, Path.of("/none"))) {
            assertThrows(UncheckedIOException.class, local.bearerFile(unusable)::build);
        }
    }

    private static FencepostClient.Builder remote() {
        return FencepostClient.builder().address("localhost:1,locks.example:1");
    }
}
