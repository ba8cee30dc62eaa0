package com.fencepost.client;

import io.grpc.ChannelCredentials;
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
import java.nio.file.Files;
import java.security.cert.CertificateException;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import javax.net.ssl.SSLException;

/** Where the servers are, and by which credentials, which are read again for each connection. */
final class Settings {
    static final Metadata.Key<String> AUTHORIZATION = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
    private static final long TOKEN_SECONDS = 5;
    private static final int LARGEST_MESSAGE = 16 << 20;

    /** The files with credentials; null where there is none. */
    record CredentialFiles(File authorities, File certificate, File key) {
        boolean isNone() {
            return authorities == null && certificate == null && key == null;
        }
    }

    final List<Address> addresses;
    private final CredentialFiles files;
    private final File bearer;
    private final Supplier<String> tokens;
    private String lastToken;
    private ChannelCredentials lastTls;
    /** A call of the user's function, which may have outlived the one that waited for it. */
    private CompletableFuture<String> asking;

    Settings(List<Address> addresses, CredentialFiles files, File bearer, Supplier<String> tokens) {
        this.addresses = addresses;
        this.files = files;
        this.bearer = bearer;
        this.tokens = tokens;
        boolean isSecret = !files.isNone() || bearer != null || tokens != null;
        for (Address address : addresses) {
            if (!address.isPrivate() && isSecret) {
                throw new IllegalArgumentException(address.text()
                        + ": with tls or a token, nothing is sent unencrypted: write https:// before the address");
            }
        }
        if ((files.certificate == null) != (files.key == null)) {
            throw new IllegalArgumentException("a certificate and its key belong together: only one of them is given");
        }
        try {
            if (bearer != null) {
                readToken();
            }
            if (addresses.stream().anyMatch(Address::encrypted)) {
                tls();
            }
        } catch (IOException unreadable) {
            throw new UncheckedIOException("credentials cannot be read: " + unreadable.getMessage(), unreadable);
        }
    }

    /** The bearer token of this moment; empty if there is none. */
    String token() throws Exception {
        if (tokens == null) {
            return bearer == null ? "" : readToken();
        }
        CompletableFuture<String> answer;
        synchronized (this) {
            if (asking == null || asking.isDone()) {
                asking = CompletableFuture.supplyAsync(tokens, FencepostClient.CALLBACKS);
            }
            answer = asking;
        }
        return answer.get(TOKEN_SECONDS, TimeUnit.SECONDS);
    }

    /** While the file is being replaced, the token before stays in use. */
    private synchronized String readToken() throws IOException {
        String read = "";
        try {
            read = Files.readString(bearer.toPath()).strip();
        } catch (IOException unreadable) {
            if (lastToken == null) {
                throw unreadable;
            }
        }
        lastToken = read.isEmpty() ? lastToken : read;
        if (lastToken == null) {
            throw new IOException(bearer + " contains no bearer token");
        }
        return lastToken;
    }

    static Metadata headers(String token) {
        var headers = new Metadata();
        if (!token.isEmpty()) {
            headers.put(AUTHORIZATION, "Bearer " + token);
        }
        return headers;
    }

    /** A new connection, which obeys no proxy setting of the machine. */
    ManagedChannel connect(Address address) throws IOException {
        NettyChannelBuilder builder;
        if (address.isUnix()) {
            builder = NettyChannelBuilder.forAddress(new DomainSocketAddress(address.path())).usePlaintext()
                    .overrideAuthority("localhost")
                    .channelType(EpollDomainSocketChannel.class, DomainSocketAddress.class)
                    .eventLoopGroup(UnixSockets.GROUP);
        } else {
            builder = NettyChannelBuilder.forAddress(address.host(), address.port(),
                    address.encrypted() ? tls() : InsecureChannelCredentials.create());
        }
        return builder.proxyDetector(target -> null).disableRetry().maxInboundMessageSize(LARGEST_MESSAGE)
                .keepAliveTime(10, TimeUnit.SECONDS).keepAliveTimeout(5, TimeUnit.SECONDS).build();
    }

    private synchronized ChannelCredentials tls() throws IOException {
        try {
            var tls = TlsChannelCredentials.newBuilder();
            if (files.authorities != null) {
                tls.trustManager(files.authorities);
            }
            if (files.certificate != null) {
                tls.keyManager(files.certificate, files.key);
            }
            lastTls = tls.build();
        } catch (IOException unreadable) { // They may be about to be replaced.
            if (lastTls == null) {
                throw unreadable;
            }
        }
        return lastTls;
    }

    /** Says which side speaks what, and whose certificate is refused, where that is why there is no connection. */
    static FencepostException explained(FencepostException failed, Address address) {
        for (Throwable cause = failed.getCause(); cause != null; cause = cause.getCause()) {
            String text = String.valueOf(cause.getMessage());
            String problem = null;
            if (cause.getClass().getSimpleName().equals("NotSslRecordException")) {
                problem = " speaks no TLS, and its address begins with https://";
            } else if (!address.encrypted() && text.contains("not SETTINGS. Hex dump for first 5 bytes: 1503")) {
                problem = " speaks TLS, and its address does not begin with https://"; // An alert of TLS.
            } else if (cause instanceof CertificateException) {
                problem = ": its certificate is refused";
            } else if (cause instanceof SSLException && text.toUpperCase(Locale.ROOT).contains("ALERT")) {
                problem = " refuses the TLS handshake, such as the certificate of the client";
            }
            if (problem != null) {
                return new UnavailableException(Status.Code.UNAVAILABLE, "TLS", address.text() + problem + ": " + text, failed);
            }
        }
        return failed;
    }

    /** Loaded only where an address is a Unix socket. */
    private static final class UnixSockets {
        static final EventLoopGroup GROUP = new MultiThreadIoEventLoopGroup(1,
                new DefaultThreadFactory("fencepost-unix", true), EpollIoHandler.newFactory());
    }
}
