//! The scenarios of `clients/SPEC.md`, each for each client: `scripts/test-clients`.
//!
//! `SCENARIO_DRIVERS` names the drivers, as `name=path` separated by commas.

#[path = "driver.rs"]
mod driver;
#[path = "../../tests/common/ports.rs"]
mod ports;
#[path = "proxy.rs"]
mod proxy;
#[path = "scenario/mod.rs"]
mod scenario;
#[path = "server.rs"]
mod server;

use std::path::Path;

use driver::Client;
use libtest_mimic::{Arguments, Trial};
use scenario::{ALL, Scenario};

/// The drivers that the environment names.
fn clients() -> Vec<Client> {
    let named = std::env::var("SCENARIO_DRIVERS").unwrap_or_default();
    let pairs = named.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, path)| Client::of(name, Path::new(path))).collect()
}

fn trial(client: &Client, scenario: &'static Scenario) -> Trial {
    let client = client.clone();
    let name = format!("{}::{}", client.name, scenario.name);
    let is_skipped =
        scenario.needs.is_some_and(|what| !client.can(what)) || scenario.is_long && !cfg!(feature = "soak");
    let run = move || {
        (scenario.run)(&client);
        Ok(())
    };
    Trial::test(name, run).with_ignored_flag(is_skipped)
}

fn main() {
    let arguments = Arguments::from_args();
    let clients = clients();
    assert!(
        !clients.is_empty(),
        "SCENARIO_DRIVERS names no driver: run scripts/test-clients"
    );
    // The same scenario of all clients is adjacent, so that those which take long start early for all.
    let trials = ALL
        .iter()
        .flat_map(|scenario| clients.iter().map(|client| trial(client, scenario)));
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
