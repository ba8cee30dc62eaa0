package com.fencepost.fence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fencepost.client.*;
import com.fencepost.testing.FencepostServer;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.*;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.*;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;
import javax.sql.DataSource;
import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.sqlite.SQLiteDataSource;
import redis.clients.jedis.Jedis;

/** The programs of docs/protect-a-resource.md: those of Java are the lines of the methods below. */
class PageTest {
    static void addOne(FencepostClient client, Connection connection) throws Exception {
        try (HeldLock lock = client.lock("accounts").waitFor(Duration.ofSeconds(30)).acquire()) {
            // Raises the token; commits with the function.
            SqlFence.transaction(connection, FencingToken.of(lock), database -> {
                try (Statement statement = database.createStatement()) {
                    ResultSet row = statement.executeQuery("SELECT total FROM account");
                    row.next();
                    return statement.executeUpdate("UPDATE account SET total = " + (row.getInt(1) + 1));
                }
            });
        }
    }

    /** Answers at the path /account. */
    static class Account extends HttpServlet {
        private static final long serialVersionUID = 1;
        private final transient DataSource source;

        Account(DataSource source) {
            this.source = source;
        }

        @Override
        protected void doPut(HttpServletRequest request, HttpServletResponse response) throws ServletException {
            try (Connection connection = source.getConnection()) { // One for each request.
                FencingToken token = FenceFilter.token(request, "accounts");
                SqlFence.transaction(connection, token, database -> {
                    try (Statement statement = database.createStatement()) {
                        return statement.executeUpdate("UPDATE account SET total = 0");
                    }
                });
            } catch (SQLException failure) {
                throw new ServletException(failure);
            }
        }
    }

    static void addOne(Jedis jedis, HeldLock lock) {
        var guard = new RedisFence(jedis::eval);
        guard.raise(FencingToken.of(lock)); // Before the first read.
        int total = Optional.ofNullable(jedis.get("total")).map(Integer::parseInt).orElse(0);
        guard.run(FencingToken.of(lock), List.of("SET", "total", Integer.toString(total + 1)));
    }

    static void writeReport(Path path, HeldLock lock) throws IOException {
        FileFence.run(path, FencingToken.of(lock), report -> Files.writeString(report, "the report of today"));
    }

    @Test
    void theProgramsOfThePageAreThoseOfThisFile() throws Exception {
        String own = Files.readString(Path.of("src/test/java/com/fencepost/fence/PageTest.java")).replaceAll("(?m)^ +", "");
        String page = Files.readString(Path.of("../../../docs/protect-a-resource.md"));
        String[] blocks = page.split("```java\n");
        assertEquals(1 + 4, blocks.length);
        for (int block = 1; block < blocks.length; block++) {
            String lines = blocks[block].split("```")[0].replaceAll("(?m)^ +", "");
            assertTrue(own.contains(lines), "the page has other lines: " + lines);
        }
        String words = page.replaceAll("\\s+", " ");
        for (SqlFence fence : SqlFence.values()) {
            String create = fence.create().replace("IF NOT EXISTS ", "").replaceAll("\\(\\s+", "(").replaceAll("\\s+\\)", ")");
            String raise = fence.raise.replace("?, ?", ":name, :token").replaceAll("\\s+", " ");
            String highest = fence.highest == null ? "" : fence.highest.replace("?", ":name");
            for (String statement : List.of(create, raise, highest)) {
                assertTrue(words.contains(statement), "the page has another statement: " + statement);
            }
        }
    }

    @Test
    void theProgramsOfThePageWork(@TempDir Path folder) throws Exception {
        var source = new SQLiteDataSource();
        try (var servers = new Servers();
                var server = FencepostServer.start();
                var client = FencepostClient.builder().address(server.address()).build();
                Connection connection = DriverManager.getConnection(servers.sqlite())) {
            source.setUrl(connection.getMetaData().getURL());
            source.setBusyTimeout(30_000);
            Jedis jedis = servers.redis();
            try (Statement statement = connection.createStatement()) {
                statement.execute(SqlFence.SQLITE.create());
                statement.execute("CREATE TABLE account (total integer NOT NULL)");
                statement.execute("INSERT INTO account VALUES (5)");
            }
            for (int time = 0; time < 2; time++) {
                addOne(client, connection);
                try (HeldLock lock = client.lock("report").acquire()) {
                    addOne(jedis, lock);
                    writeReport(folder.resolve("report"), lock);
                }
            }
            assertEquals(7, SqlFenceTest.total(connection));
            assertEquals("2", jedis.get("total"));
            assertEquals("the report of today", Files.readString(folder.resolve("report")));
            try (Statement statement = connection.createStatement()) {
                statement.execute("UPDATE fencing_tokens SET token = 33");
            }
            assertEquals(STATUSES, statuses(new Account(source), folder));
            assertEquals(0, SqlFenceTest.total(connection));
        }
    }

    @Test
    void aHandlerThatHasTakenTheWriterIsAnsweredWith412(@TempDir Path folder) throws Exception {
        var servlet = new HttpServlet() {
            private static final long serialVersionUID = 1;

            @Override
            protected void doPut(HttpServletRequest request, HttpServletResponse response) throws IOException {
                response.setContentLength(1000);
                response.getWriter().write("done");
                throw new StaleTokenException(FenceFilter.token(request, "accounts"));
            }
        };
        assertEquals(412, statuses(servlet, folder).get(2));
    }

    /** The tokens of requests, an empty list for a GET. */
    private static final List<List<String>> TOKENS = List.of(List.of(), List.of("34"), List.of("33"), List.of("34"), List.of("34", "34"),
            List.of("35", "34"), List.of(""), List.of("0"), List.of("-1"), List.of("3 4"), List.of("+3"), List.of("1_0"),
            List.of("\u00b2"), List.of("9007199254740992"), List.of("00000000000000034"), List.of("x"));
    private static final List<Integer> STATUSES =
            List.of(405, 428, 200, 412, 200, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400, 200, 200, 200, 200);

    private static List<Integer> statuses(HttpServlet servlet, Path folder) throws Exception {
        var tomcat = new Tomcat();
        tomcat.setBaseDir(folder.toString());
        tomcat.setPort(0);
        tomcat.setSilent(true);
        var context = tomcat.addContext("", folder.toString());
        Tomcat.addServlet(context, "account", servlet).addMapping("/account");
        var filter = new FilterDef();
        filter.setFilterName("fence");
        filter.setFilter(new FenceFilter());
        context.addFilterDef(filter);
        var paths = new FilterMap();
        paths.setFilterName("fence");
        paths.addURLPattern("/*");
        context.addFilterMap(paths);
        tomcat.start();
        try {
            var address = URI.create("http://127.0.0.1:" + tomcat.getConnector().getLocalPort() + "/account");
            var statuses = new ArrayList<Integer>();
            var http = HttpClient.newHttpClient();
            statuses.add(http.send(HttpRequest.newBuilder(address).build(), BodyHandlers.discarding()).statusCode());
            for (List<String> tokens : TOKENS) {
                var request = HttpRequest.newBuilder(address).PUT(HttpRequest.BodyPublishers.noBody());
                tokens.forEach(token -> request.header(FencingToken.HEADER, token));
                statuses.add(http.send(request.build(), BodyHandlers.discarding()).statusCode());
            }
            // At once.
            var request = HttpRequest.newBuilder(address).PUT(HttpRequest.BodyPublishers.noBody()).header(FencingToken.HEADER, "34");
            var answers = Stream.generate(() -> http.sendAsync(request.build(), BodyHandlers.discarding())).limit(4).toList();
            answers.forEach(answer -> statuses.add(answer.join().statusCode()));
            return statuses;
        } finally {
            tomcat.stop();
            tomcat.destroy();
        }
    }
}
