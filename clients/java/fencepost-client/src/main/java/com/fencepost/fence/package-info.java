/**
 * The resource's half of fencing: a resource that refuses a holder whose lock has a newer holder.
 *
 * <p>No lease stops a holder that is paused and writes too late. The resource keeps the highest token of each lock, and each
 * holder raises it <em>before the first read</em> of its work, in the step that also commits the work. A holder that was
 * paused after its read, and whose lock another one took meanwhile, finds a higher token and gets a
 * {@link com.fencepost.fence.StaleTokenException}. To compare only in the condition of the write is not enough: the paused
 * holder may write before the newer one does, which then overwrites it with what it computed from the older state.
 *
 * <p>This is for exclusive locks. Holders of a shared lock or of a semaphore hold at the same time, so the one with the
 * highest token would refuse the others.
 */
package com.fencepost.fence;
