package com.fencepost.testing;

import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * Starts one server for the tests of a class, which get it as a parameter:
 * {@code @ExtendWith(FencepostExtension.class)}.
 */
public final class FencepostExtension implements BeforeAllCallback, AfterAllCallback, ParameterResolver {
    private FencepostServer server;

    /** Made by JUnit. */
    public FencepostExtension() {}

    @Override
    public void beforeAll(ExtensionContext context) {
        server = FencepostServer.start();
    }

    @Override
    public void afterAll(ExtensionContext context) {
        server.close();
    }

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == FencepostServer.class;
    }

    @Override
    public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
        return server;
    }
}
