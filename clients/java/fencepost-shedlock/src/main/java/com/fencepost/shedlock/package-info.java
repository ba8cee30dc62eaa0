/** Fencepost for ShedLock. */
package com.fencepost.shedlock;
