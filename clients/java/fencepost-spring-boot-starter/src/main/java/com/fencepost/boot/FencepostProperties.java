package com.fencepost.boot;

import java.nio.file.Path;
import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * The properties {@code fencepost.*}. What is not set comes from the environment variables of the command line.
 *
 * @param address {@code HOST:PORT}, {@code https://HOST:PORT} or {@code unix:/PATH}; several separated by commas
 * @param namespace of all locks
 * @param owner who asks, which operators see
 * @param caFile PEM: the authorities that servers are verified by
 * @param certFile PEM: the certificate of this client, with {@code keyFile} and {@code caFile}
 * @param keyFile PEM, PKCS #8
 * @param bearerFile contains a bearer token
 * @param lockRegistry the registry of Spring Integration
 */
@ConfigurationProperties("fencepost")
public record FencepostProperties(String address, String namespace, String owner, Path caFile, Path certFile, Path keyFile,
        Path bearerFile, @DefaultValue LockRegistry lockRegistry) {
    /**
     * The registry of Spring Integration.
     *
     * @param prefix comes before each key in the name of its lock
     * @param ttl how long a lock stays held when its process ends without releasing it; the namespace's default without this
     */
    public record LockRegistry(@DefaultValue("") String prefix, Duration ttl) {}
}
