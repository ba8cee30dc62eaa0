package com.fencepost.client;

import com.fencepost.client.Acquisition.Grant;
import com.fencepost.client.Connections.Connection;
import com.fencepost.client.Connections.CredentialFiles;
import com.fencepost.v1.AcquireAllRequest;
import com.fencepost.v1.AcquireRequest;
import com.fencepost.v1.GetLockRequest;
import com.fencepost.v1.LockServiceGrpc;
import com.fencepost.v1.LockState;
import com.fencepost.v1.LockToAcquire;
import com.fencepost.v1.ReleaseRequest;
import com.fencepost.v1.WatchLockRequest;
import com.fencepost.v1.WatchLockResponse;
import io.grpc.ClientCall;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.io.File;
import java.lang.System.Logger.Level;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * A client of the servers of one Fencepost service. A program needs one; all threads may use it.
 *
 * <pre>{@code
 * try (FencepostClient client = FencepostClient.builder().address("locks:50051").build();
 *         HeldLock lock = client.lock("reports").waitFor(Duration.ofSeconds(30)).acquire()) {
 *     save(report, lock.check());
 * }
 * }</pre>
 *
 * <p>A lease counts from before its request was sent, so that its loss is reported before another client can hold the
 * lock. The clock is {@link System#nanoTime()}, which on Linux stops while the machine is suspended: after a suspend, only
 * the fencing token tells that a lock was lost meanwhile.
 *
 * <p>The client's threads are daemons. A program that ends without {@link #close()} leaves its locks until their time to
 * live is over.
 */
public final class FencepostClient implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger("com.fencepost.client");
    private static final long CALL = Times.seconds(10);
    static final long RELEASE = Times.seconds(5);

    final Calls calls;
    /** Runs what completes for users: one thread for each that is busy. */
    final ExecutorService callbacks = Executors.newCachedThreadPool(daemons("fencepost-callback"));
    final Map<FencepostLock.Key, FencepostLock.Hold> holds = new ConcurrentHashMap<>();
    private final Set<Acquisition<?>> acquisitions = ConcurrentHashMap.newKeySet();
    private final Set<CompletableFuture<?>> background = ConcurrentHashMap.newKeySet();
    private final ScheduledThreadPoolExecutor timer =
            new ScheduledThreadPoolExecutor(1, daemons("fencepost-timer"));
    private final KeepAlive keepAlive;
    private final String namespace;
    private final String owner;
    private volatile boolean isClosed;

    private FencepostClient(Builder builder) {
        timer.setRemoveOnCancelPolicy(true);
        namespace = builder.namespace;
        owner = builder.owner == null ? defaultOwner() : builder.owner;
        calls = new Calls(new Connections(Address.parse(builder.addresses), builder.files(), timer), timer);
        keepAlive = new KeepAlive(calls);
    }

    /**
     * {@return settings for a new client} Those that are not set come from the environment variables of the command line:
     * {@code FENCEPOST_ADDR}, {@code FENCEPOST_NAMESPACE}, {@code FENCEPOST_OWNER}, {@code FENCEPOST_CA_FILE},
     * {@code FENCEPOST_CERT_FILE}, {@code FENCEPOST_KEY_FILE} and {@code FENCEPOST_BEARER_FILE}.
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Prepares a request for a lock, which is exclusive unless the request says otherwise.
     *
     * @param name 1 to 512 bytes of UTF-8 without control characters
     * @return the request
     */
    public LockRequest<HeldLock> lock(String name) {
        return new LockRequest<>(this, template(name), 1, (calls, connection, request, limit) -> calls.once(
                connection, LockServiceGrpc.getAcquireMethod(), request, limit,
                (answer, sent) -> Grant.of(answer.hasLease(), answer.getLease(), sent)), locks -> locks.get(0));
    }

    /**
     * Prepares a request for a permit of a semaphore.
     *
     * @param name 1 to 512 bytes of UTF-8 without control characters
     * @param limit how many permits there are in all, at most 1,000,000; the smallest limit among the claims counts
     * @return the request
     */
    public LockRequest<HeldLock> semaphore(String name, int limit) {
        return lock(name).permits(1, limit);
    }

    /**
     * Prepares a request for several locks, all or none, without deadlock with others of this kind.
     *
     * @param names 2 to 64 distinct names
     * @return the request, whose mode is that of each lock
     */
    public LockRequest<HeldLocks> lockAll(Collection<String> names) {
        return new LockRequest<>(this, template(""), names.size(), (calls, connection, request, limit) -> calls.once(
                connection, LockServiceGrpc.getAcquireAllMethod(), all(names, request), limit,
                (answer, sent) -> new Grant(answer.getLeasesList(), sent)), HeldLocks::new);
    }

    private static AcquireAllRequest all(Collection<String> names, AcquireRequest request) {
        var all = AcquireAllRequest.newBuilder().setNamespace(request.getNamespace()).setOwner(request.getOwner())
                .setRequestId(request.getRequestId()).setWait(request.getWait())
                .putAllMetadata(request.getMetadataMap());
        if (request.hasTtl()) {
            all.setTtl(request.getTtl());
        }
        for (String name : names) {
            var lock = LockToAcquire.newBuilder().setName(name);
            all.addLocks(request.hasMode() ? lock.setMode(request.getMode()) : lock);
        }
        return all.build();
    }

    /**
     * A lock for code that uses {@link java.util.concurrent.locks.Lock}, re-entrant for each thread, with the namespace's
     * default time to live. It is renewed while it is held.
     *
     * @param name 1 to 512 bytes of UTF-8 without control characters
     * @return the lock
     */
    public FencepostLock asLock(String name) {
        return new FencepostLock(this, name, null);
    }

    /**
     * As {@link #asLock(String)}, with a time to live.
     *
     * @param name 1 to 512 bytes of UTF-8 without control characters
     * @param ttl within the namespace's bounds
     * @return the lock
     */
    public FencepostLock asLock(String name, Duration ttl) {
        return new FencepostLock(this, name, ttl);
    }

    /**
     * {@return an election}
     *
     * @param name 1 to 512 bytes of UTF-8 without control characters; the lock of this name is the leadership
     */
    public Election election(String name) {
        return new Election(this, name);
    }

    /**
     * {@return who holds a lock and who waits for it} A lock that nobody uses has neither.
     *
     * @param name the lock
     * @throws FencepostException if no server answers within 10 s, or the server refuses
     */
    public LockState get(String name) {
        var request = GetLockRequest.newBuilder().setNamespace(namespace).setName(name).build();
        var answer = call(LockServiceGrpc.getGetLockMethod(), request);
        if (!answer.hasLock()) {
            throw FencepostException.incomplete();
        }
        return answer.getLock();
    }

    /**
     * Watches a lock: its state first and after any gap, and each change between. Goes on when the server restarts.
     *
     * @param name the lock
     * @param executor runs the listener, one event at a time
     * @param listener gets a full state or a change
     * @return to be closed
     */
    public Registration watch(String name, Executor executor, Consumer<WatchLockResponse> listener) {
        var request = WatchLockRequest.newBuilder().setNamespace(namespace).setName(name).build();
        return subscribe(LockServiceGrpc.getWatchLockMethod(), request, executor, listener);
    }

    /** {@return the namespace of all locks of this client} */
    public String namespace() {
        return namespace;
    }

    /**
     * Ends all requests, reports all held locks as lost, and releases them, within 5 s. An interrupt neither prevents this
     * nor is it lost. A second call does nothing.
     */
    @Override
    public void close() {
        if (isClosed) {
            return;
        }
        isClosed = true;
        acquisitions.forEach(acquisition -> acquisition.fail(new IllegalStateException("the client is closed")));
        for (Lease lease : keepAlive.leases()) {
            lease.lose("closed", "the client was closed");
            inBackground(releaseCall(lease.id, RELEASE));
        }
        CompletableFuture.allOf(background.toArray(CompletableFuture<?>[]::new))
                .orTimeout(RELEASE, TimeUnit.NANOSECONDS)
                .exceptionally(failed -> {
                    LOG.log(Level.WARNING, "not all locks were released: {0}", failed.getMessage());
                    return null;
                })
                .join();
        calls.connections.close();
        timer.shutdownNow();
        callbacks.shutdown();
    }

    AcquireRequest.Builder template(String name) {
        return AcquireRequest.newBuilder().setNamespace(namespace).setOwner(owner).setName(name);
    }

    void begin(Acquisition<?> acquisition) {
        acquisitions.add(acquisition);
        acquisition.granted.whenComplete((lock, error) -> acquisitions.remove(acquisition));
        if (isClosed) {
            throw new IllegalStateException("the client is closed");
        }
    }

    HeldLock hold(com.fencepost.v1.Lease granted, long sent, Spans span) {
        var lease = new Lease(granted, sent, callbacks);
        lease.lost.thenAccept(span::lost);
        // The server may count it for longer, so that the lock would stay held without a holder.
        lease.lost.thenAccept(loss -> {
            if (loss.lossCause().equals("unrenewed")) {
                inBackground(releaseCall(lease.id, RELEASE).exceptionally(unconfirmed -> null));
            }
        });
        keepAlive.add(lease);
        return new HeldLock(this, lease);
    }

    /** Ends the renewals of a lease that is not to be released. */
    void forget(Lease lease) {
        keepAlive.remove(lease);
        lease.released();
    }

    CompletableFuture<Void> release(Lease lease) {
        long left = lease.left();
        if (left <= 0) {
            return CompletableFuture.failedFuture(lease.loss());
        }
        forget(lease);
        var released = releaseCall(lease.id, Math.min(RELEASE, left));
        inBackground(released);
        return released;
    }

    CompletableFuture<Void> releaseCall(String leaseId, long limit) {
        var request = ReleaseRequest.newBuilder().setLeaseId(leaseId).build();
        return calls.call(LockServiceGrpc.getReleaseMethod(), request, limit, (answer, sent) -> null);
    }

    void inBackground(CompletableFuture<?> work) {
        background.add(work);
        work.whenComplete((nothing, error) -> background.remove(work));
    }

    <Q, A> A call(MethodDescriptor<Q, A> method, Q request) {
        return join(calls.call(method, request, CALL, (answer, sent) -> answer));
    }

    /** Opens a stream again when it breaks. One event is fetched when the one before was taken. */
    <Q, A> Registration subscribe(MethodDescriptor<Q, A> method, Q request, Executor executor, Consumer<A> listener) {
        return new Loop("fencepost-watch", ended -> {
            boolean worked = false;
            Connection connection = calls.connections.forWait();
            ClientCall<Q, A> call = connection.channel.newCall(method, calls.options);
            try {
                var events = ClientCalls.blockingServerStreamingCall(call, request);
                while (events.hasNext()) {
                    A event = events.next();
                    worked = true;
                    join(CompletableFuture.runAsync(() -> {
                        if (!ended.isDone()) {
                            listener.accept(event);
                        }
                    }, executor));
                }
            } catch (StatusRuntimeException broken) {
                if (!ended.isDone() && !(calls.failed(connection, broken) instanceof UnavailableException)) {
                    throw FencepostException.of(broken, connection.address.text());
                }
            } finally {
                call.cancel("its listener has ended", null);
                calls.connections.ended(connection);
            }
            return worked;
        });
    }

    /** Waits for what has a limit of its own. An interrupt does not end this, and is not lost. */
    static <T> T join(CompletableFuture<T> future) {
        try {
            return future.join();
        } catch (CompletionException failed) {
            throw thrown(failed.getCause());
        }
    }

    /** A failure, with the stack of the caller instead of that of the transport, which is in its cause. */
    static RuntimeException thrown(Throwable failure) {
        failure.fillInStackTrace();
        return failure instanceof RuntimeException known ? known : new IllegalStateException(failure);
    }

    static ThreadFactory daemons(String name) {
        return task -> {
            var thread = new Thread(task, name);
            thread.setDaemon(true);
            return thread;
        };
    }

    private static String defaultOwner() {
        String host;
        try {
            host = InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException nameless) {
            host = "localhost";
        }
        return System.getProperty("user.name") + "@" + host + ":" + ProcessHandle.current().pid();
    }

    /** The settings of a client. */
    public static final class Builder {
        private String addresses = environment("FENCEPOST_ADDR", "127.0.0.1:50051");
        private String namespace = environment("FENCEPOST_NAMESPACE", "default");
        private String owner = environment("FENCEPOST_OWNER", null);
        private File authorities = file(environment("FENCEPOST_CA_FILE", null));
        private File certificate = file(environment("FENCEPOST_CERT_FILE", null));
        private File key = file(environment("FENCEPOST_KEY_FILE", null));
        private File bearer = file(environment("FENCEPOST_BEARER_FILE", null));

        private Builder() {}

        /**
         * Sets the servers of one service, which share a store. One is used until it fails, then the next one.
         *
         * @param list {@code HOST:PORT}, {@code https://HOST:PORT} or, on Linux, {@code unix:/PATH}; several separated by
         *     commas
         * @return this
         */
        public Builder address(String list) {
            addresses = list;
            return this;
        }

        /**
         * Sets the namespace of all locks; {@code default} without this.
         *
         * @param name {@code [a-z0-9][a-z0-9._-]{0,62}}
         * @return this
         */
        public Builder namespace(String name) {
            namespace = name;
            return this;
        }

        /**
         * Sets who asks, which operators see; {@code user@host:process} without this.
         *
         * @param label 1 to 256 bytes
         * @return this
         */
        public Builder owner(String label) {
            owner = label;
            return this;
        }

        /**
         * Sets the certificates of authorities that servers at {@code https://} addresses are verified by; those of the
         * system without this. The file is read again for each new connection.
         *
         * @param trust PEM
         * @return this
         */
        public Builder tls(Path trust) {
            authorities = trust.toFile();
            return this;
        }

        /**
         * As {@link #tls(Path)}, and authenticates the client by a certificate.
         *
         * @param trust PEM
         * @param certificate PEM
         * @param key PEM, PKCS #8
         * @return this
         */
        public Builder tls(Path trust, Path certificate, Path key) {
            this.certificate = certificate.toFile();
            this.key = key.toFile();
            return tls(trust);
        }

        /**
         * Authenticates the client by a bearer token. It is sent only over TLS or within the machine.
         *
         * @param file contains the token, and is read for each call
         * @return this
         */
        public Builder bearerFile(Path file) {
            bearer = file.toFile();
            return this;
        }

        /**
         * Makes the client, which connects at its first call.
         *
         * @return the client, which is to be closed
         * @throws IllegalArgumentException if an address is not one, or with TLS files or a token is remote and lacks
         *     {@code https://}; if a certificate lacks its key
         * @throws java.io.UncheckedIOException if a file with credentials cannot be read
         */
        public FencepostClient build() {
            return new FencepostClient(this);
        }

        private CredentialFiles files() {
            return new CredentialFiles(authorities, certificate, key, bearer);
        }

        private static String environment(String name, String otherwise) {
            String value = System.getenv(name);
            return value == null || value.isEmpty() ? otherwise : value;
        }

        private static File file(String path) {
            return path == null ? null : new File(path);
        }
    }
}
