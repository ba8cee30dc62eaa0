package com.fencepost.client;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** A way to a server on which connections can fall silent. */
final class Proxy implements AutoCloseable {
    private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private final String host;
    private final int port;
    private final List<Link> links = new CopyOnWriteArrayList<>();
    private volatile boolean isSilent;
    private volatile long connectMillis;

    private static final class Link {
        volatile boolean isSilent;
    }

    Proxy(String address) throws IOException {
        int colon = address.lastIndexOf(':');
        host = address.substring(0, colon);
        port = Integer.parseInt(address.substring(colon + 1));
        start(this::accept);
    }

    String address() {
        return "127.0.0.1:" + listener.getLocalPort();
    }

    /** Nothing passes any more on the connections there are; new ones work. */
    void silenceOpenConnections() {
        links.forEach(link -> link.isSilent = true);
    }

    /** A new connection takes so long before anything passes. */
    void delayConnections(long millis) {
        connectMillis = millis;
    }

    /** Nothing passes any more. */
    void silence() {
        isSilent = true;
    }

    @Override
    public void close() throws IOException {
        listener.close();
    }

    private void accept() {
        try {
            while (true) {
                Socket near = listener.accept();
                Thread.sleep(connectMillis);
                Socket far = new Socket(host, port);
                var link = new Link();
                links.add(link);
                start(() -> pass(near, far, link));
                start(() -> pass(far, near, link));
            }
        } catch (IOException | InterruptedException closed) {
            // The test is over.
        }
    }

    private void pass(Socket from, Socket to, Link link) {
        byte[] bytes = new byte[65_536];
        try (InputStream in = from.getInputStream(); OutputStream out = to.getOutputStream()) {
            for (int read = in.read(bytes); read >= 0; read = in.read(bytes)) {
                if (!isSilent && !link.isSilent) {
                    out.write(bytes, 0, read);
                }
            }
        } catch (IOException closed) {
            // Both directions end.
        }
    }

    private static void start(Runnable task) {
        var thread = new Thread(task, "proxy");
        thread.setDaemon(true);
        thread.start();
    }
}
