/**
 * Locks, semaphores and elections of a Fencepost server: {@link com.fencepost.client.FencepostClient} takes them, keeps
 * their leases, and reports when one is or may be lost.
 */
package com.fencepost.client;
