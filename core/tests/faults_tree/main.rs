//! The tree engine over a simulated ensemble, whose connections break and whose servers lag behind, and over one of
//! independent steps as etcd has them: what it promises all the same.
//!
//! [`storm`] runs the calls of two servers through random faults, and [`mutants`] leaves each condition of the engine out
//! and looks for a storm that notices. [`requests`] has two calls of one request, [`ended`] two ends of one lease,
//! [`crowds`] many calls that come together, [`watching`] a release that meets a list, [`late`] grants that arrive or are
//! answered late, [`left`] leases of a server that is gone, and [`restored`] claims that an old copy brings back.

mod crowds;
mod ended;
mod late;
mod left;
mod mutants;
mod requests;
mod restored;
mod storm;
mod watching;

/// Sorts before all others, which would otherwise run twice.
#[test]
fn a_binary_begins_anew_before_its_other_tests() {
    common::seeded::begin_anew();
}
