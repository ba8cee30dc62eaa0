//! The Helm chart: what it renders is what Kubernetes takes, and what must never slip.
//!
//! The schemas are those of Kubernetes and of the operators themselves, from the Go modules that hold
//! them, kept below `target`. A pod is never run: no cluster is needed.

mod hardened;
mod helm;
mod image;
mod keys;
mod memory;
mod moves;
mod production;
mod refused;
mod schemas;
mod seams;
mod service;
mod valid;
mod values;
