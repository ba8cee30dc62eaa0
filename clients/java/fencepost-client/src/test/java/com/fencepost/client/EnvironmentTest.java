package com.fencepost.client;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class EnvironmentTest {
    /** Prints what a client takes from its environment. */
    public static void main(String[] arguments) {
        try (var client = FencepostClient.builder().build()) {
            System.out.println(client.namespace() + " " + client.template("x").getOwner());
        }
    }

    private static String run(Map<String, String> environment) throws Exception {
        var program = new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                "-cp", System.getProperty("java.class.path"), EnvironmentTest.class.getName());
        program.environment().putAll(environment);
        byte[] output = program.redirectErrorStream(true).start().getInputStream().readAllBytes();
        return new String(output, StandardCharsets.UTF_8).strip();
    }

    @Test
    void theEnvironmentNamesTheNamespaceAndTheOwner() throws Exception {
        // Before that, SLF4J, which the driver of Redis brings, says that it logs nothing.
        String output = run(Map.of("FENCEPOST_NAMESPACE", "jobs", "FENCEPOST_OWNER", "billing"));
        assertTrue(output.endsWith("jobs billing"), output);
    }

    @Test
    void aCertificateWithoutItsKeyIsRefused() throws Exception {
        for (String file : List.of("FENCEPOST_CERT_FILE", "FENCEPOST_KEY_FILE")) {
            String output = run(Map.of(file, "/dev/null"));
            assertTrue(output.contains("belong together"), output);
        }
    }
}
