//! What tests without a wire share: simulated stores, storms of calls, and clients of one server.

use std::path::PathBuf;

pub mod claims;
pub mod clients;
pub mod dice;
pub mod ensemble;
pub mod record_contract;
pub mod record_steps;
pub mod record_store;
pub mod seeded;
pub mod short_leases;
pub mod storm;

/// The folder of the profile that this test was built for, `target/debug`, which has its program and `deps`.
pub fn built() -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    test.ancestors().nth(2).expect("it is below `deps`").to_owned()
}

/// What tests keep from one run to the next: `CARGO_TARGET_TMPDIR`, which Cargo names to the tests alone.
pub fn kept(name: &str) -> PathBuf {
    let folder = built().with_file_name("tmp").join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}
