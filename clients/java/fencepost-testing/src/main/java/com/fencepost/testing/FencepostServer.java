package com.fencepost.testing;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A Fencepost server in memory, on a free port of this machine. The program is that of the environment variable
 * {@code FENCEPOST_BIN}, or {@code fencepost} of the path.
 */
public final class FencepostServer implements AutoCloseable {
    private static final long START_MS = 20_000;

    private final Process process;
    private final String address;

    private FencepostServer(Process process, String address) {
        this.process = process;
        this.address = address;
    }

    /**
     * Starts a server and waits at most 20 s until it accepts calls.
     *
     * @return the server, which is to be closed; it also ends with this process if that ends normally
     * @throws IllegalStateException if it does not start
     */
    public static FencepostServer start() {
        return start("127.0.0.1:0");
    }

    /**
     * As {@link #start()}, at an address, such as that of a server before.
     *
     * @param listen {@code IP:PORT} or {@code unix:/PATH}
     * @return the server, which is to be closed
     * @throws IllegalStateException if it does not start
     */
    public static FencepostServer start(String listen) {
        String program = System.getenv().getOrDefault("FENCEPOST_BIN", "fencepost");
        try {
            Path folder = Files.createTempDirectory("fencepost-");
            Path ready = folder.resolve("address");
            Path log = folder.resolve("log");
            Process process = new ProcessBuilder(
                    program, "serve", "--memory", "--listen", listen, "--ready-file", ready.toString())
                    .redirectErrorStream(true).redirectOutput(log.toFile()).start();
            Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
            String address = awaitAddress(process, ready, log);
            for (Path file : List.of(ready, log, folder)) {
                Files.deleteIfExists(file);
            }
            return new FencepostServer(process, address);
        } catch (IOException failed) {
            throw new UncheckedIOException("cannot start " + program + " (see FENCEPOST_BIN): " + failed.getMessage(), failed);
        }
    }

    private static String awaitAddress(Process process, Path ready, Path log) throws IOException {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(START_MS);
        try {
            while (!Files.exists(ready) || Files.size(ready) == 0) {
                if (process.waitFor(10, TimeUnit.MILLISECONDS) || System.nanoTime() - end > 0) {
                    process.destroyForcibly();
                    throw new IllegalStateException("the server does not start: " + Files.readString(log));
                }
            }
        } catch (InterruptedException interrupt) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while the server starts", interrupt);
        }
        return Files.readAllLines(ready).get(0);
    }

    /** {@return the address for the builder of a client} */
    public String address() {
        return address;
    }

    /** {@return the process, for tests that stop or kill it} */
    public ProcessHandle process() {
        return process.toHandle();
    }

    /** Kills the server and waits for its end. A second call does nothing. */
    @Override
    public void close() {
        process.destroyForcibly().onExit().join();
    }
}
