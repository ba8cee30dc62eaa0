//! What a release consists of: each artefact is made by a dry run of `scripts/release` from the program of these tests,
//! installed in an empty folder or a fresh root directory, and a first lock is taken with it.

mod dist;
mod languages;
mod manifests;
mod packages;
mod script;
mod steps;
