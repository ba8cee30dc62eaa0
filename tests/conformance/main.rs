//! The conformance suite: what every backend promises, one named test per promise and backend.
//!
//! A case is a plain `async fn case(bed: &Bed)` in `cases/`; the table in [`suite`] names them all;
//! a backend joins with a function that opens a [`bed::Bed`] (in [`beds`]) and one line below.
//! `grpc/` asks the same of the whole service, through its API.

#[macro_use]
mod suite;
mod bed;
mod beds;
mod cases;
mod claims;
mod replica;
mod streams;
mod walk;

conformance_suite!(memory, crate::beds::memory, (start_paused = true));
conformance_suite!(file, crate::beds::file, ());
