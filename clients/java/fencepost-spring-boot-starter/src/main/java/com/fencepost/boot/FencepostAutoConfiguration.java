package com.fencepost.boot;

import com.fencepost.client.FencepostClient;
import com.fencepost.spring.FencepostLockRegistry;
import java.time.Duration;
import java.util.function.Consumer;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.health.autoconfigure.contributor.ConditionalOnEnabledHealthIndicator;
import org.springframework.boot.health.contributor.Health;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.LockRegistry;

/** Makes a client, which is closed with the context, a registry of locks, and the client's health. */
@AutoConfiguration
@EnableConfigurationProperties(FencepostProperties.class)
public class FencepostAutoConfiguration {
    /** Made by Spring Boot. */
    public FencepostAutoConfiguration() {}

    /**
     * {@return the client} A program that makes one of its own gets no other.
     *
     * @param properties of {@code fencepost}
     */
    @Bean
    @ConditionalOnMissingBean
    public FencepostClient fencepostClient(FencepostProperties properties) {
        var builder = FencepostClient.builder();
        set(properties.address(), builder::address);
        set(properties.namespace(), builder::namespace);
        set(properties.owner(), builder::owner);
        set(properties.caFile(), builder::tls);
        set(properties.certFile(), certificate -> builder.tls(properties.caFile(), certificate, properties.keyFile()));
        set(properties.bearerFile(), builder::bearerFile);
        return builder.build();
    }

    private static <T> void set(T value, Consumer<T> setter) {
        if (value != null) {
            setter.accept(value);
        }
    }

    /** Where Spring Integration is there. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(DistributedLock.class)
    public static class OfSpringIntegration {
        /** Made by Spring Boot. */
        public OfSpringIntegration() {}

        /**
         * {@return the registry of locks}
         *
         * @param client takes them
         * @param properties of {@code fencepost}
         */
        @Bean
        @ConditionalOnMissingBean(LockRegistry.class)
        public FencepostLockRegistry fencepostLockRegistry(FencepostClient client, FencepostProperties properties) {
            return new FencepostLockRegistry(client, properties.lockRegistry().prefix(), properties.lockRegistry().ttl());
        }
    }

    /** Where the health of Spring Boot is there. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(HealthIndicator.class)
    public static class OfHealth {
        private static final Duration LIMIT = Duration.ofSeconds(3);

        /** Made by Spring Boot. */
        public OfHealth() {}

        /**
         * {@return the health} It is up if a server answers within 3 s.
         *
         * @param client asks
         */
        @Bean
        @ConditionalOnEnabledHealthIndicator("fencepost")
        @ConditionalOnMissingBean(name = "fencepostHealthIndicator")
        public HealthIndicator fencepostHealthIndicator(FencepostClient client) {
            return () -> {
                try {
                    client.ping(LIMIT);
                    return Health.up().withDetail("namespace", client.namespace()).build();
                } catch (RuntimeException failed) {
                    return Health.down(failed).build();
                }
            };
        }
    }
}
