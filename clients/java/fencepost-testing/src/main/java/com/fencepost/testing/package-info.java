/** A Fencepost server for tests. */
package com.fencepost.testing;
