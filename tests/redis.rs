//! The Redis store over servers that the tests start: its faults, its settings, and their harness.

mod faults_redis;
mod redis_harness;
mod redis_settings;
