package com.fencepost.driver;

import com.fencepost.client.ClientClosedException;
import com.fencepost.client.FencepostClient;
import com.fencepost.client.FencepostException;
import com.fencepost.client.HeldLock;
import com.fencepost.client.LeaseLostException;
import com.fencepost.client.LockHeldException;
import com.fencepost.client.LockRequest;
import com.fencepost.client.Registration;
import com.fencepost.client.UnavailableException;
import com.fencepost.client.WaitTimeoutException;
import com.fencepost.v1.AcquireRequest;
import com.fencepost.v1.LockServiceGrpc;
import com.fencepost.v1.ReleaseRequest;
import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/** Speaks the protocol of the scenario suite, in JSON lines, over the public API of the client. */
public final class Driver {
    /** A block under a lock: what it is told, and what it holds. */
    private static final class Block {
        final BlockingQueue<String> orders = new LinkedBlockingQueue<>();
        volatile Thread thread;
        volatile HeldLock held;
        volatile boolean isCancelled;
    }

    /** What the block's own code fails with. */
    private static final class Boom extends RuntimeException {
        private static final long serialVersionUID = 1;
    }

    private static final Gson GSON = new Gson();
    private static final List<String> CAN = List.of("interrupt", "block", "slow_callback", "once", "final_tls", "token_rotation",
            "early_loss", "due_renewals");
    private static final Map<String, Block> BLOCKS = new ConcurrentHashMap<>();
    private static final Map<String, Registration> OBSERVED = new ConcurrentHashMap<>();
    private static final Queue<HeldLock> HELD = new ConcurrentLinkedQueue<>();
    /** All callbacks of this user run here, one after the other. */
    private static final Executor CALLBACKS = Executors.newSingleThreadExecutor(Driver::daemon);
    private static FencepostClient client;

    public static void main(String[] arguments) throws IOException, InterruptedException {
        WarmUp.run();
        say("hello", null, "language", "java", "can", CAN, "boom", List.of("throw", "error"));
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            String op = command.get("op").getAsString();
            if (op.equals("exit")) {
                return;
            }
            String id = text(command, "id");
            try {
                if (client == null) {
                    client = connect();
                }
                obey(op, id, command);
            } catch (RuntimeException failure) {
                failed(id, kind(failure), failure);
            }
        }
    }

    private static FencepostClient connect() {
        return FencepostClient.builder().build();
    }

    private static void obey(String op, String id, JsonObject command) {
        Block block = BLOCKS.get(id);
        switch (op) {
            case "acquire", "campaign" -> {
                var begun = new Block();
                BLOCKS.put(id, begun);
                begun.thread = daemon(() -> run(id, begun, op, command));
                begun.thread.start();
            }
            case "release" -> block.orders.add("release");
            case "boom" -> block.orders.add(text(command, "how"));
            case "cancel", "interrupt" -> {
                if (OBSERVED.containsKey(id)) {
                    OBSERVED.remove(id).close();
                } else {
                    block.isCancelled = op.equals("cancel");
                    block.thread.interrupt();
                }
            }
            case "check" -> {
                try {
                    say("ok", id, "token", block.held.check());
                } catch (LeaseLostException lost) {
                    say("notheld", id);
                }
            }
            case "slow_callback" -> {
                block.held.onLost(Runnable::run, loss -> sleep(command));
                say("ok", id);
            }
            case "observe" -> {
                var observed = client.election(text(command, "name")).observe(CALLBACKS, leader ->
                        say("leader", id, "token", leader.isPresent() ? leader.get().getFencingToken() : null,
                                "value", leader.isPresent() ? leader.get().getValue() : null));
                observed.ended().whenComplete((nothing, failure) -> {
                    if (failure != null) {
                        failed(id, kind(failure), failure);
                    }
                });
                OBSERVED.put(id, observed);
            }
            default -> daemon(() -> {
                switch (op) {
                    case "block" -> CompletableFuture.runAsync(() -> sleep(command), CALLBACKS).join();
                    case "hold" -> hold(id, command);
                    case "drop_all" -> dropAll(id);
                    case "churn" -> churn(command.get("count").getAsInt());
                    case "once" -> once(command);
                    case "bench" -> bench(id, command);
                    case "close" -> client.close();
                    default -> say("unsupported", id);
                }
                if (List.of("block", "churn", "once").contains(op)) {
                    say("ok", id);
                } else if (op.equals("close")) {
                    say("closed", id);
                }
            }).start();
        }
    }

    private static void run(String id, Block block, String op, JsonObject command) {
        try {
            if (op.equals("campaign")) {
                var campaign = client.election(text(command, "name")).campaign(text(command, "value"));
                try (var leadership = with(campaign, command).acquire()) {
                    inside(id, block, leadership, List.of(leadership));
                }
            } else if (command.has("names")) {
                try (var all = with(client.lockAll(names(command)), command).acquire()) {
                    inside(id, block, all.locks().get(0), all.locks());
                }
            } else if (command.has("reentrant") && command.get("reentrant").getAsBoolean()) {
                reenter(id, block, command);
            } else {
                try (HeldLock lock = with(client.lock(text(command, "name")), command).acquire()) {
                    inside(id, block, lock, List.of(lock));
                }
            }
            say("released", id);
        } catch (Throwable failure) {
            boolean isCancelled = failure instanceof InterruptedException && block.isCancelled;
            failed(id, isCancelled ? "cancelled" : kind(failure), failure);
        }
    }

    private static void failed(String id, String kind, Throwable failure) {
        String reason = failure instanceof FencepostException refused ? refused.reason() : "";
        say("failed", id, "kind", kind, "reason", reason, "message", failure.toString());
    }

    private static void reenter(String id, Block block, JsonObject command) throws InterruptedException {
        var lock = client.asLock(text(command, "name"), millis(command, "ttl", 10_000));
        lock.lockInterruptibly();
        try {
            lock.lock();
            try {
                inside(id, block, lock.held(), List.of(lock.held()));
            } finally {
                lock.unlock();
            }
        } finally {
            lock.unlock();
        }
    }

    /** What is done under the locks: nothing, until it is told to end or one is lost. */
    private static void inside(String id, Block block, HeldLock first, List<HeldLock> locks) throws InterruptedException {
        block.held = first;
        var lost = new AtomicInteger();
        for (HeldLock lock : locks) {
            lock.onLost(CALLBACKS, loss -> {
                if (lost.getAndIncrement() == 0) {
                    say("lost", id, "cause", loss.lossCause());
                    block.orders.add("lost");
                }
            });
        }
        say("granted", id, "token", first.token(), "tokens", locks.stream().map(HeldLock::token).toList());
        switch (block.orders.take()) {
            case "release" -> {}
            case "lost" -> locks.forEach(HeldLock::check);
            case "error" -> throw new AssertionError("boom");
            default -> throw new Boom();
        }
    }

    private static <L> LockRequest<L> with(LockRequest<L> request, JsonObject command) {
        if (command.has("ttl")) {
            request.ttl(millis(command, "ttl", 0));
        }
        if (command.has("wait") && command.get("wait").getAsLong() < 0) {
            request.waitForever();
        } else if (command.has("wait")) {
            request.waitFor(millis(command, "wait", 0));
        }
        JsonElement mode = command.get("mode");
        if (mode != null && mode.isJsonObject()) {
            var semaphore = mode.getAsJsonObject();
            request.permits(semaphore.get("permits").getAsInt(), semaphore.get("limit").getAsInt());
        } else if (mode != null && mode.getAsString().equals("shared")) {
            request.shared();
        }
        if (command.has("metadata")) {
            command.getAsJsonObject("metadata").asMap().forEach((key, value) -> request.metadata(key, value.getAsString()));
        }
        return request;
    }

    private static void hold(String id, JsonObject command) {
        var taken = names(command).stream().map(name -> with(client.lock(name), command).acquireAsync()).toList();
        int failed = 0;
        for (var one : taken) {
            try {
                HELD.add(one.join());
            } catch (RuntimeException failure) {
                System.err.println(failure);
                failed++;
            }
        }
        say("held", id, "count", taken.size() - failed, "failed", failed);
    }

    private static void dropAll(String id) {
        var released = new AtomicInteger();
        HELD.parallelStream().forEach(lock -> {
            try {
                lock.close();
                released.incrementAndGet();
            } catch (FencepostException failure) {
                System.err.println(failure);
            }
        });
        HELD.clear();
        say("ok", id, "count", released.get());
    }

    /** A job that does nothing. */
    private static void once(JsonObject command) {
        try (HeldLock lock = client.lock(text(command, "name")).atLeast(millis(command, "at_least", 0)).acquire()) {
            lock.check();
        } catch (InterruptedException never) {
            throw new IllegalStateException(never);
        }
    }

    private static void churn(int count) {
        for (int i = 0; i < count; i++) {
            try (FencepostClient one = connect(); HeldLock lock = one.lock("churn").waitFor(Duration.ofSeconds(10)).acquire()) {
                lock.check();
            } catch (InterruptedException interrupt) {
                return;
            }
        }
    }

    private static void bench(String id, JsonObject command) {
        boolean isBare = command.has("bare") && command.get("bare").getAsBoolean();
        String address = System.getenv("FENCEPOST_ADDR");
        var channel = isBare ? Grpc.newChannelBuilder(address, InsecureChannelCredentials.create()).build() : null;
        var stub = isBare ? LockServiceGrpc.newBlockingStub(channel) : null;
        long begin = System.nanoTime();
        long end = begin + millis(command, "ms", 1000).toNanos();
        var pairs = new AtomicLong();
        var threads = new ArrayList<Thread>();
        for (int i = 0; i < command.get("locks").getAsInt(); i++) {
            String name = "bench-" + i;
            threads.add(daemon(() -> {
                while (System.nanoTime() < end) {
                    if (isBare) {
                        var lease = stub.acquire(AcquireRequest.newBuilder()
                                .setNamespace("default").setOwner("bench").setName(name).build()).getLease();
                        stub.release(ReleaseRequest.newBuilder().setLeaseId(lease.getLeaseId()).build());
                    } else {
                        take(name);
                    }
                    pairs.incrementAndGet();
                }
            }));
        }
        threads.forEach(Thread::start);
        threads.forEach(thread -> {
            try {
                thread.join();
            } catch (InterruptedException never) {
                throw new IllegalStateException(never);
            }
        });
        if (isBare) {
            channel.shutdownNow();
        }
        say("bench", id, "pairs", pairs.get(), "ms", (System.nanoTime() - begin) / 1_000_000);
    }

    private static void take(String name) {
        try {
            client.lock(name).acquire().close();
        } catch (InterruptedException never) {
            throw new IllegalStateException(never);
        }
    }

    private static String kind(Throwable failure) {
        if (failure instanceof FencepostException refused) {
            return switch (refused.code()) {
                case UNAUTHENTICATED -> "unauthenticated";
                case PERMISSION_DENIED -> "denied";
                case RESOURCE_EXHAUSTED -> "overloaded";
                case INVALID_ARGUMENT -> "invalid";
                default -> failure instanceof LockHeldException ? "held"
                        : failure instanceof WaitTimeoutException ? "timeout"
                        : failure instanceof LeaseLostException ? "lost"
                        : failure instanceof UnavailableException ? "unavailable"
                        : failure instanceof ClientClosedException ? "closed"
                        : refused.reason().equals("SUPERSEDED") ? "superseded" : "other";
            };
        }
        return failure instanceof Boom || failure instanceof AssertionError ? "boom"
                : failure instanceof InterruptedException ? "interrupted"
                : failure instanceof CancellationException ? "cancelled"
                : failure instanceof IllegalArgumentException ? "invalid"
                : "other";
    }

    private static List<String> names(JsonObject command) {
        return command.getAsJsonArray("names").asList().stream().map(JsonElement::getAsString).toList();
    }

    private static String text(JsonObject command, String field) {
        return command.has(field) ? command.get(field).getAsString() : "";
    }

    private static Duration millis(JsonObject command, String field, long otherwise) {
        return Duration.ofMillis(command.has(field) ? command.get(field).getAsLong() : otherwise);
    }

    private static void sleep(JsonObject command) {
        try {
            Thread.sleep(command.get("ms").getAsLong());
        } catch (InterruptedException never) {
            throw new IllegalStateException(never);
        }
    }

    private static Thread daemon(Runnable task) {
        var thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    }

    private static synchronized void say(String event, String id, Object... fields) {
        var line = new LinkedHashMap<String, Object>();
        line.put("event", event);
        line.put("id", id);
        for (int i = 0; i < fields.length; i += 2) {
            line.put((String) fields[i], fields[i + 1]);
        }
        System.out.println(GSON.newBuilder().serializeNulls().create().toJson(line));
        System.out.flush();
    }

    private Driver() {}
}
