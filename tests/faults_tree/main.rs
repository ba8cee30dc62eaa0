//! The tree engine over a simulated ensemble, whose connections break and whose servers lag behind, and over one of
//! independent steps as etcd has them: what it promises all the same.
//!
//! [`storm`] runs the calls of two servers through random faults, and [`mutants`] leaves each condition of the engine out
//! and looks for a storm that notices. [`requests`] has two calls of one request, and [`crowds`] many calls that come together.

#![cfg(feature = "zookeeper")]

mod crowds;
mod mutants;
mod requests;
mod storm;
