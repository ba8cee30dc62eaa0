/** Fencepost for Spring Integration. */
package com.fencepost.spring;
