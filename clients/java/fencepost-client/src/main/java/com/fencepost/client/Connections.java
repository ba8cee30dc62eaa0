package com.fencepost.client;

import io.grpc.CallCredentials;
import io.grpc.ChannelCredentials;
import io.grpc.ConnectivityState;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.EventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.MultiThreadIoEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollIoHandler;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import io.grpc.netty.shaded.io.netty.util.concurrent.DefaultThreadFactory;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.System.Logger.Level;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Executor;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * The connections of a client: one for calls and KeepAlive streams, and others for waits and watches, each with at most
 * 100, because proxies allow 128 streams on a connection and would let a Release queue behind the waits.
 *
 * <p>A connection that failed is replaced by a new one to the next address, with certificates that are read again.
 */
final class Connections {
    private static final System.Logger LOG = System.getLogger("com.fencepost.client");
    private static final int WAITS = 100;
    private static final long OLD_CALLS_SECONDS = 10;

    /** The files with credentials; null where there is none. */
    record CredentialFiles(File authorities, File certificate, File key, File bearer) {
        static final CredentialFiles NONE = new CredentialFiles(null, null, null, null);
    }

    /** A connection, and the number of calls on it that wait. */
    static final class Connection {
        final ManagedChannel channel;
        final Address address;
        private final int slot;
        private int waits;

        private Connection(ManagedChannel channel, Address address, int slot) {
            this.channel = channel;
            this.address = address;
            this.slot = slot;
        }
    }

    private final List<Address> addresses;
    private final CredentialFiles files;
    private final ScheduledExecutorService timer;
    /** The first one is for calls; null where the next call opens one. */
    private final List<Connection> slots = new ArrayList<>();
    private int preferred;
    private ChannelCredentials lastTls;
    /** The bearer token that was read last. */
    private volatile String token;
    private boolean closed;

    Connections(List<Address> addresses, CredentialFiles files, ScheduledExecutorService timer) {
        this.addresses = addresses;
        this.files = files;
        this.timer = timer;
        for (Address address : addresses) {
            if (!address.isPrivate() && !files.equals(CredentialFiles.NONE)) {
                throw new IllegalArgumentException(address.text()
                        + ": with tls or a bearerFile, nothing is sent unencrypted: write https:// before the address");
            }
        }
        if ((files.certificate == null) != (files.key == null)) {
            throw new IllegalArgumentException("a certificate and its key belong together: only one of them is given");
        }
        try {
            token = files.bearer == null ? null : readToken();
        } catch (IOException unreadable) {
            throw new UncheckedIOException("credentials cannot be read: " + unreadable.getMessage(), unreadable);
        }
        forCalls();
    }

    synchronized Connection forCalls() {
        return slot(0);
    }

    /** A connection with room for a call that waits or streams; {@link #ended} makes the room free. */
    synchronized Connection forWait() {
        int slot = 1;
        while (slot(slot).waits >= WAITS) {
            slot++;
        }
        slots.get(slot).waits++;
        return slots.get(slot);
    }

    synchronized void ended(Connection connection) {
        connection.waits--;
    }

    /** Replaces a connection after a failure, once for all calls that used it. */
    void failed(Connection connection, UnavailableException why) {
        synchronized (this) {
            boolean isInUse = !closed && slots.get(connection.slot) == connection;
            if (!isInUse || !why.isOfConnection() && addresses.size() == 1) {
                return;
            }
            preferred = (addresses.indexOf(connection.address) + 1) % addresses.size();
            slots.set(connection.slot, null);
            LOG.log(Level.WARNING, "going on with a new connection to {0}, because: {1}",
                    addresses.get(preferred).text(), why.getMessage());
            timer.schedule(connection.channel::shutdownNow, OLD_CALLS_SECONDS, TimeUnit.SECONDS);
        }
        connection.channel.shutdown();
    }

    void close() {
        List<Connection> open;
        synchronized (this) {
            closed = true;
            open = slots.stream().filter(Objects::nonNull).toList();
        }
        open.forEach(connection -> connection.channel.shutdownNow());
    }

    private Connection slot(int index) {
        while (slots.size() <= index) {
            slots.add(null);
        }
        if (slots.get(index) == null) {
            if (closed) {
                throw new IllegalStateException("the client is closed");
            }
            Address address = addresses.get(preferred);
            var connection = new Connection(open(address), address, index);
            slots.set(index, connection);
            // A server that hangs accepts the connection and never begins to speak.
            timer.schedule(() -> endIfUnready(connection), addresses.size() > 1 ? 3 : 10, TimeUnit.SECONDS);
        }
        return slots.get(index);
    }

    private void endIfUnready(Connection connection) {
        if (connection.channel.getState(false) == ConnectivityState.CONNECTING) {
            failed(connection, new UnavailableException(Status.Code.UNAVAILABLE, "",
                    connection.address.text() + ": the server does not begin to speak", 0, null));
            connection.channel.shutdownNow();
        }
    }

    private ManagedChannel open(Address address) {
        NettyChannelBuilder builder;
        if (address.isUnix()) {
            builder = NettyChannelBuilder.forAddress(new DomainSocketAddress(address.path())).usePlaintext()
                    .overrideAuthority("localhost")
                    .channelType(EpollDomainSocketChannel.class, DomainSocketAddress.class)
                    .eventLoopGroup(UnixSockets.GROUP);
        } else {
            builder = NettyChannelBuilder.forAddress(address.host(), address.port(), credentials(address));
        }
        return builder.keepAliveTime(10, TimeUnit.SECONDS).keepAliveTimeout(5, TimeUnit.SECONDS).build();
    }

    private ChannelCredentials credentials(Address address) {
        if (!address.encrypted()) {
            return InsecureChannelCredentials.create();
        }
        try {
            var tls = TlsChannelCredentials.newBuilder();
            if (files.authorities != null) {
                tls.trustManager(files.authorities);
            }
            if (files.certificate != null) {
                tls.keyManager(files.certificate, files.key);
            }
            lastTls = tls.build();
        } catch (IOException unreadable) {
            // They may be about to be replaced.
            if (lastTls == null) {
                throw new UncheckedIOException("credentials cannot be read: " + unreadable.getMessage(), unreadable);
            }
        }
        return lastTls;
    }

    /** Sends the token in a file, which is read for each call. While it is being replaced, the previous token counts. */
    CallCredentials bearer() {
        return files.bearer == null ? null : new CallCredentials() {
            @Override
            public void applyRequestMetadata(RequestInfo info, Executor executor, MetadataApplier applier) {
                try {
                    token = readToken();
                } catch (IOException unreadable) {
                    LOG.log(Level.WARNING, "the bearer token cannot be read: {0}", unreadable.toString());
                }
                var headers = new Metadata();
                headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + token);
                applier.apply(headers);
            }
        };
    }

    private String readToken() throws IOException {
        String read = Files.readString(files.bearer.toPath()).strip();
        if (read.isEmpty()) {
            throw new IOException(files.bearer + " contains no bearer token");
        }
        return read;
    }

    /** Loaded only where an address is a Unix socket. */
    private static final class UnixSockets {
        static final EventLoopGroup GROUP = new MultiThreadIoEventLoopGroup(1,
                new DefaultThreadFactory("fencepost-unix", true), EpollIoHandler.newFactory());
    }
}
