package com.fencepost.fence;

import static java.nio.charset.StandardCharsets.UTF_8;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.Collections;
import java.util.List;
import java.util.Set;

/**
 * A filter of servlets, for Spring MVC a bean. A handler finds the token of its request by {@link #token}.
 *
 * <p>A request without a token is answered with 428, one with a bad token or several with 400, and one whose handler throws
 * {@link StaleTokenException}, also as the cause of another exception, with 412. The filter compares nothing itself, because
 * only the transaction of the work can: the handler raises the token there, as the first statement of {@link SqlFence}, and
 * answers when it has committed.
 */
public final class FenceFilter implements Filter {
    private static final String ATTRIBUTE = "fencepost.token";

    private final Set<String> methods;

    /** A filter of POST, PUT, PATCH and DELETE. */
    public FenceFilter() {
        this(Set.of("POST", "PUT", "PATCH", "DELETE"));
    }

    /**
     * A filter.
     *
     * @param methods of the requests that need a token; others pass
     */
    public FenceFilter(Set<String> methods) {
        this.methods = Set.copyOf(methods);
    }

    /**
     * {@return the token that a request brought}
     *
     * @param request that passed this filter
     * @param lock whose holders send the request
     * @throws IllegalStateException if the request passed no filter, or needs no token
     */
    public static FencingToken token(ServletRequest request, String lock) {
        if (request.getAttribute(ATTRIBUTE) instanceof Long number) {
            return new FencingToken(lock, number);
        }
        throw new IllegalStateException("the request did not pass a FenceFilter of its method");
    }

    @Override
    public void doFilter(ServletRequest request, ServletResponse response, FilterChain chain) throws IOException, ServletException {
        var http = (HttpServletRequest) request;
        var answer = (HttpServletResponse) response;
        if (!methods.contains(http.getMethod())) {
            chain.doFilter(request, response);
            return;
        }
        List<String> given = Collections.list(http.getHeaders(FencingToken.HEADER));
        if (given.isEmpty()) {
            refuse(answer, 428, "the header " + FencingToken.HEADER + " must have the token of the lock");
            return;
        }
        try {
            request.setAttribute(ATTRIBUTE, FencingToken.parse("", String.join(", ", given)).number());
        } catch (IllegalArgumentException bad) {
            refuse(answer, 400, "the header " + FencingToken.HEADER + " must be a number from 1 to 2^53 - 1");
            return;
        }
        try {
            chain.doFilter(request, response);
        } catch (IOException | ServletException | RuntimeException failure) {
            if (answer.isCommitted() || !isStale(failure)) {
                throw failure;
            }
            answer.resetBuffer();
            refuse(answer, 412, "a newer holder of the lock has used this resource");
        }
    }

    /** Spring throws what a handler threw as the cause of its own exception. */
    private static boolean isStale(Throwable failure) {
        while (failure != null && !(failure instanceof StaleTokenException)) {
            failure = failure.getCause();
        }
        return failure != null;
    }

    private static void refuse(HttpServletResponse answer, int status, String text) throws IOException {
        answer.setStatus(status);
        answer.setContentType("text/plain; charset=utf-8");
        answer.setContentLength(text.length());
        try {
            answer.getOutputStream().write(text.getBytes(UTF_8));
        } catch (IllegalStateException handlerHasWriter) {
            answer.getWriter().write(text);
        }
    }
}
