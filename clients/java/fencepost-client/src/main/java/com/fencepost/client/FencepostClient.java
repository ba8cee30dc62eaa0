package com.fencepost.client;

import com.fencepost.v1.AcquireAllRequest;
import com.fencepost.v1.AcquireRequest;
import com.fencepost.v1.AdminServiceGrpc;
import com.fencepost.v1.CheckTokenRequest;
import com.fencepost.v1.ForceReleaseRequest;
import com.fencepost.v1.GetLockRequest;
import com.fencepost.v1.ListLocksRequest;
import com.fencepost.v1.ListLocksResponse;
import com.fencepost.v1.LockServiceGrpc;
import com.fencepost.v1.LockState;
import com.fencepost.v1.LockSummary;
import com.fencepost.v1.LockToAcquire;
import com.fencepost.v1.SessionCommand;
import com.fencepost.v1.SessionEvent.CommandResult;
import com.fencepost.v1.WatchLockRequest;
import com.fencepost.v1.WatchLockResponse;
import java.io.File;
import java.lang.ref.Cleaner;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.Stream;

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
 * lock. Where {@code /proc/uptime} tells it, the time in which the machine is suspended counts too; elsewhere, only the
 * fencing token tells after a suspend that a lock was lost meanwhile.
 *
 * <p>The client's threads are daemons. A program that ends without {@link #close()} leaves its locks until their time to
 * live is over.
 */
public final class FencepostClient implements AutoCloseable {
    static final Cleaner CLEANER = Cleaner.create();
    /** Runs what may block, and what completes for users: one thread for each that is busy, for all clients. */
    static final ExecutorService CALLBACKS = Executors.newCachedThreadPool(daemons("fencepost-callback"));

    final Session session;
    /** What each thread holds by {@link FencepostLock}. */
    final ThreadLocal<Map<String, FencepostLock.Hold>> holds = ThreadLocal.withInitial(HashMap::new);
    private final String namespace;
    private final String owner;

    private FencepostClient(Builder builder) {
        namespace = builder.namespace;
        owner = builder.owner == null ? defaultOwner() : builder.owner;
        session = new Session(builder.settings());
        CLEANER.register(this, session::end);
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
        return new LockRequest<>(this, template(name), 1, FencepostClient::single,
                leases -> new HeldLock(this, leases.get(0)));
    }

    private static SessionCommand.Builder single(AcquireRequest request) {
        return SessionCommand.newBuilder().setAcquire(SessionCommand.Acquire.newBuilder().setRequest(request).setKeep(true));
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
     * @param names 1 to 64 distinct names
     * @return the request, whose mode is that of each lock
     */
    public LockRequest<HeldLocks> lockAll(Collection<String> names) {
        boolean isSingle = names.size() == 1;
        return new LockRequest<>(this, template(isSingle ? names.iterator().next() : ""), names.size(),
                request -> isSingle ? single(request) : SessionCommand.newBuilder().setAcquireAll(
                        SessionCommand.AcquireAll.newBuilder().setRequest(all(names, request)).setKeep(true)),
                leases -> new HeldLocks(leases.stream().map(lease -> new HeldLock(this, lease)).toList()));
    }

    private static AcquireAllRequest all(Collection<String> names, AcquireRequest request) {
        var all = AcquireAllRequest.newBuilder().setNamespace(request.getNamespace()).setOwner(request.getOwner())
                .setRequestId(request.getRequestId())
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
        return asLock(name, null);
    }

    /**
     * As {@link #asLock(String)}, with a time to live.
     *
     * @param name 1 to 512 bytes of UTF-8 without control characters
     * @param ttl within the namespace's bounds; null: the namespace's default
     * @return the lock
     */
    public FencepostLock asLock(String name, Duration ttl) {
        return new FencepostLock(this, name, ttl, false);
    }

    /**
     * As {@link #asLock(String, Duration)}, with a read lock that others may share. The thread that has the write lock may
     * take the read lock too, and then has the write lock until it has released both; a reader cannot become the writer.
     *
     * @param name 1 to 512 bytes of UTF-8 without control characters
     * @param ttl within the namespace's bounds; null: the namespace's default
     * @return both locks
     */
    public ReadWriteLock asReadWriteLock(String name, Duration ttl) {
        return new FencepostLock.ReadWrite(new FencepostLock(this, name, ttl, true), asLock(name, ttl));
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
        var request = GetLockRequest.newBuilder().setNamespace(namespace).setName(name);
        return call(SessionCommand.newBuilder().setGetLock(request), (result, sent) -> {
            if (!result.getGetLock().hasLock()) {
                throw FencepostException.incomplete();
            }
            return result.getGetLock().getLock();
        });
    }

    /**
     * {@return whether a fencing token holds a lock now}
     *
     * @param name the lock
     * @param token a fencing token
     * @throws FencepostException if no server answers within 10 s, or the server refuses
     */
    public boolean checkToken(String name, long token) {
        var request = CheckTokenRequest.newBuilder().setNamespace(namespace).setName(name).setFencingToken(token);
        return call(SessionCommand.newBuilder().setCheckToken(request), (result, sent) -> result.getCheckToken().getHeld());
    }

    /**
     * {@return the locks in use, by name; not a snapshot} Each page is asked for when it is needed.
     *
     * @param prefix only names that begin so
     * @throws FencepostException also later, if no server answers within 10 s, or the server refuses
     */
    public Stream<LockSummary> list(String prefix) {
        var first = ListLocksRequest.newBuilder().setNamespace(namespace).setPrefix(prefix);
        return Stream.iterate(page(first), Objects::nonNull, page -> page.getNextPageToken().isEmpty() ? null
                : page(first.setPageToken(page.getNextPageToken()))).flatMap(page -> page.getLocksList().stream());
    }

    private ListLocksResponse page(ListLocksRequest.Builder request) {
        return session.unary(LockServiceGrpc.getListLocksMethod(), request.build());
    }

    /**
     * Takes a lock from the holder with this token, with all its holds.
     *
     * @param name the lock
     * @param token the holder's fencing token
     * @throws LeaseLostException if the token is not held
     * @throws FencepostException if no server answers within 10 s, or the server refuses
     */
    public void forceRelease(String name, long token) {
        session.unary(AdminServiceGrpc.getForceReleaseMethod(), ForceReleaseRequest.newBuilder()
                .setNamespace(namespace).setName(name).setFencingToken(token).build());
    }

    /**
     * Watches a lock: its state first and after any gap, and each change between. Goes on when the server restarts.
     *
     * @param name the lock
     * @param executor runs the listener, one event at a time
     * @param listener gets a full state or a change; what it throws is logged
     * @return to be closed
     */
    public Registration watch(String name, Executor executor, Consumer<WatchLockResponse> listener) {
        var request = WatchLockRequest.newBuilder().setNamespace(namespace).setName(name);
        return new Subscription(session, SessionCommand.newBuilder().setWatchLock(request), executor,
                event -> listener.accept(event.getWatched().getMessage()));
    }

    /**
     * Asks whether a server answers.
     *
     * @param limit how long to wait for that
     * @throws FencepostException if no server answers in time, or the server refuses
     */
    public void ping(Duration limit) {
        session.ping(Times.now() + Times.nanos(limit));
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
        session.close();
    }

    AcquireRequest.Builder template(String name) {
        return AcquireRequest.newBuilder().setNamespace(namespace).setOwner(owner).setName(name);
    }

    /** Sends a command for at most 10 s, and waits for its result. */
    <T> T call(SessionCommand.Builder message, BiFunction<CommandResult, Command<T>, T> read) {
        var command = new Command<>(Command.Kind.CALL, message, read);
        command.end = Times.now() + Session.CALL;
        return join(session.send(command).done);
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
        private Supplier<String> tokens;

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
         * @param file contains the token, and is read for each connection, and when the token is refused
         * @return this
         */
        public Builder bearerFile(Path file) {
            bearer = file.toFile();
            tokens = null;
            return this;
        }

        /**
         * As {@link #bearerFile(Path)}, with a token that a function returns. It is called on a thread of its own for each
         * connection, and when the token is refused. One that fails, or takes longer than 5 s, is asked again within the time
         * of each call.
         *
         * @param function returns the token of this moment
         * @return this
         */
        public Builder bearerToken(Supplier<String> function) {
            tokens = function;
            bearer = null;
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

        private Settings settings() {
            return new Settings(
                    Address.parse(addresses), new Settings.CredentialFiles(authorities, certificate, key), bearer, tokens);
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
