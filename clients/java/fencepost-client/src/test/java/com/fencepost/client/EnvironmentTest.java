package com.fencepost.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.Test;

class EnvironmentTest {
    /** Prints what a client takes from its environment. */
    public static void main(String[] arguments) {
        try (var client = FencepostClient.builder().build()) {
            System.out.println(client.namespace() + " " + client.template("x").getOwner());
        }
    }

    @Test
    void theEnvironmentNamesTheNamespaceAndTheOwner() throws Exception {
        var program = new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                "-cp", System.getProperty("java.class.path"), EnvironmentTest.class.getName());
        program.environment().putAll(Map.of("FENCEPOST_NAMESPACE", "jobs", "FENCEPOST_OWNER", "billing"));
        byte[] output = program.start().getInputStream().readAllBytes();
        assertEquals("jobs billing", new String(output, StandardCharsets.UTF_8).strip());
    }
}
