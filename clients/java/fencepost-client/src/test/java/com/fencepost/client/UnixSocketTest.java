package com.fencepost.client;

import com.fencepost.testing.FencepostServer;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledOnOs;
import org.junit.jupiter.api.condition.OS;
import org.junit.jupiter.api.io.TempDir;

class UnixSocketTest {
    @Test
    @EnabledOnOs(OS.LINUX)
    void aServerAtAUnixSocketIsUsed(@TempDir Path folder) throws Exception {
        try (var server = FencepostServer.start("unix:" + folder.resolve("socket"));
                var client = FencepostClient.builder().address(server.address()).build();
                HeldLock lock = client.lock("x").acquire()) {
            lock.check();
        }
    }
}
