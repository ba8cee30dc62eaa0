package com.fencepost.fence;

import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.DriverManager;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.stream.Stream;
import redis.clients.jedis.Jedis;

/** Real servers of databases, each on a free port in a folder of its own. */
final class Servers implements AutoCloseable {
    private interface End {
        void run() throws IOException;
    }

    private final List<End> ends = new ArrayList<>();

    /** The path of a program, or with CI=true a failure, else a skipped test, where it is missing. */
    private static String program(String name) throws IOException {
        var folders = new ArrayList<>(Stream.of(System.getenv("PATH").split(":")).map(Path::of).toList());
        folders.add(Path.of("/usr/sbin"));
        Path versions = Path.of("/usr/lib/postgresql");
        if (Files.isDirectory(versions)) {
            try (var all = Files.list(versions)) {
                all.forEach(version -> folders.add(0, version.resolve("bin")));
            }
        }
        var found = folders.stream().map(folder -> folder.resolve(name)).filter(Files::isExecutable).findFirst();
        if ("true".equals(System.getenv("CI"))) {
            assertTrue(found.isPresent(), name + " is missing: scripts/test installs it");
        }
        assumeTrue(found.isPresent(), name + " is missing");
        return found.get().toString();
    }

    private static int freePort() throws IOException {
        try (var socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }

    /** A folder of a user, whose processes begin with the returned words, because root must not run some servers. */
    private List<String> user(String user, Path folder) throws Exception {
        if (!System.getProperty("user.name").equals("root")) {
            return List.of();
        }
        run(List.of("chown", user, folder.toString()), folder);
        return List.of("setpriv", "--reuid=" + user, "--regid=" + user, "--clear-groups");
    }

    Path folder() throws IOException {
        Path folder = Files.createTempDirectory(Path.of("/tmp"), "fence");
        ends.add(() -> {
            try (var all = Files.walk(folder)) {
                all.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
            }
        });
        return folder;
    }

    private static List<String> words(List<String> first, Object... rest) {
        var words = new ArrayList<>(first);
        Stream.of(rest).map(Object::toString).forEach(words::add);
        return words;
    }

    private static void run(List<String> command, Path folder) throws Exception {
        Process process = new ProcessBuilder(command).directory(folder.toFile()).redirectErrorStream(true).start();
        String output = new String(process.getInputStream().readAllBytes());
        assertTrue(process.waitFor() == 0, command + ": " + output);
    }

    /** Starts a server and waits until it answers. */
    private void start(List<String> command, Path folder, Callable<?> question) throws Exception {
        Process process = new ProcessBuilder(command).directory(folder.toFile())
                .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        ends.add(() -> process.destroyForcibly().onExit().join());
        for (long end = System.nanoTime() + 60_000_000_000L; ; Thread.sleep(50)) {
            try {
                question.call();
                return;
            } catch (Exception refused) {
                if (!process.isAlive() || System.nanoTime() > end) {
                    throw refused;
                }
            }
        }
    }

    /** Starts PostgreSQL and returns its address for JDBC. */
    String postgres() throws Exception {
        Path folder = folder();
        List<String> user = user("postgres", folder);
        run(words(user, program("initdb"), "-D", folder + "/data", "-U", "postgres", "-A", "trust", "--no-sync"), folder);
        int port = freePort();
        String url = "jdbc:postgresql://127.0.0.1:" + port + "/postgres?user=postgres";
        List<String> command = words(user, program("postgres"), "-D", folder + "/data", "-c", "port=" + port,
                "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=" + folder, "-c", "fsync=off");
        start(command, folder, () -> close(DriverManager.getConnection(url)));
        return url;
    }

    /** Starts MariaDB and returns its address for JDBC. */
    String mariadb() throws Exception {
        Path folder = folder();
        List<String> user = user("mysql", folder);
        String[] data = {"--no-defaults", "--datadir=" + folder + "/data", "--tmpdir=" + folder};
        run(words(words(words(user, program("mariadb-install-db")), (Object[]) data), "--auth-root-authentication-method=normal",
                "--skip-test-db"), folder);
        int port = freePort();
        String url = "jdbc:mariadb://127.0.0.1:" + port + "/mysql?user=root";
        start(words(words(words(user, program("mariadbd")), (Object[]) data), "--port=" + port, "--bind-address=127.0.0.1",
                "--socket=" + folder + "/s"), folder, () -> close(DriverManager.getConnection(url)));
        return url;
    }

    /** A database of SQLite. */
    String sqlite() throws Exception {
        return "jdbc:sqlite:" + folder() + "/work.db?busy_timeout=30000";
    }

    /** Starts Redis. */
    Jedis redis() throws Exception {
        int port = freePort();
        Path folder = folder();
        var jedis = new Jedis("127.0.0.1", port);
        start(List.of(program("redis-server"), "--port", Integer.toString(port), "--bind", "127.0.0.1", "--save", ""), folder,
                jedis::ping);
        ends.add(jedis::close);
        return jedis;
    }

    private static boolean close(AutoCloseable resource) throws Exception {
        resource.close();
        return true;
    }

    @Override
    public void close() throws IOException {
        for (int last = ends.size() - 1; last >= 0; last--) {
            ends.get(last).run();
        }
    }
}
