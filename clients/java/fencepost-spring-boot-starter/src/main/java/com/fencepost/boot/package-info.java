/** Fencepost for Spring Boot 4. */
package com.fencepost.boot;
