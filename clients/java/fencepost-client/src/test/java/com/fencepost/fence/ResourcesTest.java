package com.fencepost.fence;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fencepost.fence.FencedObject.Version;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ResourcesTest {
    private static FencingToken token(long number) {
        return new FencingToken("a", number);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    @Test
    void redisRefusesAPausedHolderAndRunsNoneOfItsCommands() throws Exception {
        try (var servers = new Servers()) {
            var jedis = servers.redis();
            var guard = new RedisFence(jedis::eval);
            guard.raise(token(33));
            assertEquals(List.of("OK", 3L), guard.run(token(34), List.of("SET", "total", "1"), List.of("INCRBY", "total", "2")));
            assertThrows(StaleTokenException.class, () -> guard.run(token(33), List.of("SET", "total", "0")));
            assertEquals("3", jedis.get("total"));
            // A client may put a prefix before the keys, and there alone.
            var prefixing = new RedisFence((script, keys, arguments) ->
                    jedis.eval(script, keys.stream().map(key -> "app:" + key).toList(), arguments));
            assertEquals(List.of(1L, "PONG", 3L),
                    prefixing.run(token(33), List.of("INCR", "total"), List.of("PING"), List.of("INCRBY", "total", "2")));
            assertEquals("3", jedis.get("app:total"));
            guard.raise(token((1L << 53) - 1));
            assertThrows(StaleTokenException.class, () -> guard.raise(token((1L << 53) - 2)));
        }
    }

    /** A store whose ETag is that of the body alone, as in S3. */
    private static final class Store implements FencedObject.Store {
        private byte[] body;
        private Runnable beforePut = () -> {};

        @Override
        public Optional<Version> get() {
            return Optional.ofNullable(body).map(body -> new Version(body, Integer.toString(Arrays.hashCode(body))));
        }

        @Override
        public boolean put(byte[] next, Optional<String> etag) {
            Runnable first = beforePut;
            beforePut = () -> {};
            first.run();
            if (!get().map(Version::etag).equals(etag)) {
                return false;
            }
            body = next;
            return true;
        }
    }

    @Test
    void anObjectRefusesAPausedHolderAlsoWithTheBytesThatWereThere() throws Exception {
        var store = new Store();
        var report = new FencedObject(store);
        assertTrue(report.read(token(33)).isEmpty());
        report.write(token(33), bytes("first\n\0"));
        // One that is paused between its look and its write finds what the newer one has put there, though the data is the same.
        store.beforePut = () -> {
            try {
                assertArrayEquals(bytes("first\n\0"), report.read(token(34)).orElseThrow());
            } catch (IOException failure) {
                throw new IllegalStateException(failure);
            }
        };
        assertThrows(StaleTokenException.class, () -> report.write(token(33), bytes("late")));
        assertThrows(StaleTokenException.class, () -> report.read(token(33)));
        report.write(token(34), new byte[0]);
        assertArrayEquals(new byte[0], report.read(token(35)).orElseThrow());
        for (String body : List.of("no token", "fencing-token: 0\n1\n", "fencing-token: 99999999999999999\n1\n")) {
            store.body = bytes(body);
            assertThrows(IOException.class, () -> report.read(token(35)));
        }
    }

    @Test
    void anObjectWithoutETagAndAStoreThatAlwaysRefusesAreErrors() {
        for (String etag : List.of("", "other")) {
            var odd = new FencedObject(new FencedObject.Store() {
                @Override
                public Optional<Version> get() {
                    return Optional.of(new Version(bytes("fencing-token: 1\n1\n"), etag));
                }

                @Override
                public boolean put(byte[] body, Optional<String> expected) {
                    return false;
                }
            });
            var read = assertThrows(IOException.class, () -> odd.read(token(33)));
            assertThrows(IOException.class, () -> odd.write(token(33), bytes("first")));
            assertTrue(read.getMessage().contains(etag.isEmpty() ? "without an ETag" : "100 attempts"), read.getMessage());
        }
    }

    /** As of Ctrl-C, to all processes of a group. */
    private static Void signal(String name, Path report) throws IOException {
        String script = "for flock in $(pgrep -f \"^flock $1\"); do pkill -$0 -P $flock; kill -$0 $flock; done";
        new ProcessBuilder("sh", "-c", script, name, report + ".lock").start().onExit().join();
        return null;
    }

    @Test
    void aFileStaysLockedWhenSignalsReachTheProgramFlock(@TempDir Path folder) throws Exception {
        Path report = folder.resolve("report");
        CompletableFuture<Void> newer = FileFence.run(report, token(33), path -> {
            for (String name : List.of("INT", "TERM", "HUP", "QUIT")) {
                signal(name, report);
            }
            var waiting = CompletableFuture.runAsync(() -> {
                try {
                    FileFence.run(report, token(34), other -> null);
                } catch (IOException failure) {
                    throw new IllegalStateException(failure);
                }
            });
            assertThrows(TimeoutException.class, () -> waiting.get(300, TimeUnit.MILLISECONDS));
            return waiting;
        });
        newer.get(30, TimeUnit.SECONDS);
        // What cannot be ignored is told.
        var killed = assertThrows(IOException.class, () -> FileFence.run(report, token(34), path -> signal("KILL", report)));
        assertTrue(killed.getMessage().contains("may have run beside"), killed.getMessage());
    }

    @Test
    void aFileRefusesAPausedHolderAndLetsOneInAtATime(@TempDir Path folder) throws Exception {
        Path report = folder.resolve("report");
        var order = new ArrayList<String>();
        CompletableFuture<Path> newer = FileFence.run(report, token(33), path -> {
            var waiting = CompletableFuture.supplyAsync(() -> {
                try {
                    return FileFence.run(report, token(34), other -> {
                        order.add("newer");
                        return Files.writeString(other, "6");
                    });
                } catch (IOException failure) {
                    throw new IllegalStateException(failure);
                }
            });
            assertThrows(TimeoutException.class, () -> waiting.get(300, TimeUnit.MILLISECONDS));
            order.add("older");
            Files.writeString(path, "5");
            return waiting;
        });
        newer.get(30, TimeUnit.SECONDS);
        assertEquals(List.of("older", "newer"), order);
        assertThrows(StaleTokenException.class, () -> FileFence.run(report, token(33), path -> Files.writeString(path, "late")));
        assertEquals("6", Files.readString(report));
        // A shell script leaves the end of a line behind the token.
        Files.writeString(folder.resolve("report.token"), "35\n");
        int seven = FileFence.run(report, token(35), path -> 7);
        assertEquals(7, seven);
        // Not the token that was given is wrong.
        Files.writeString(folder.resolve("report.token"), "x");
        assertThrows(IOException.class, () -> FileFence.run(report, token(35), path -> 7));
    }
}
