package com.fencepost.fence;

/**
 * What is done with a resource while its token is raised.
 *
 * @param <T> what the work gets
 * @param <R> what the work returns
 * @param <E> what the work throws
 */
@FunctionalInterface
public interface Work<T, R, E extends Exception> {
    /**
     * Does the work.
     *
     * @param resource a connection in its transaction, or the path of a file
     * @return what the caller gets
     * @throws E is passed on to the caller
     */
    R run(T resource) throws E;
}
