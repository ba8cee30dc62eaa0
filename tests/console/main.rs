//! The console: over HTTP as a browser or an attacker calls it, and in a real Chromium as people use it.

#![cfg(all(feature = "console", feature = "embedded"))]

use common::server;

mod accessible;
mod attacks;
mod browser;
mod faults;
mod fixture;
mod focus;
mod http;
mod people;
mod requests;
mod screenshots;
mod soak;
mod tls;
