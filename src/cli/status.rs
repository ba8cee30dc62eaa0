//! `fencepost status`: whether each of several servers answers and serves, with the stores as each of them sees them.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use fencepost::api::proto::{NamespaceHealth, NamespaceInfo};
use fencepost::clock;
use fencepost_client::{Address, Client, Credentials, Error};
use futures::future::join_all;
use serde_json::json;

use super::Failure;
use super::admin::health;
use super::exit;
use super::output::{Format, Paint, print, with_causes};
use super::server::{Call, block_on};
use super::table::Table;
use super::unprintable::{escaped_json, plain};

/// Show whether servers serve.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each address of --addr is asked by itself. Exits with 0 only if all of them serve, with all their stores, and\n\
                        with 123 otherwise. With --output json, each line is one address.\n\n\
                        Examples:\n  fencepost status --addr 10.0.0.1:50051,10.0.0.2:50051,10.0.0.3:50051\n  \
                        fencepost status -o json | jq -r 'select(.state != \"serving\") | .address'"
)]
pub struct Status {}

/// What one server has answered.
#[derive(Debug)]
struct Row {
    address: String,
    health: Result<Answered, Error>,
}

/// The answers of a server that serves.
#[derive(Debug)]
struct Answered {
    took: Duration,
    namespaces: Result<Vec<NamespaceInfo>, Error>,
}

/// Asks all servers at once and prints a row for each, in the order of the addresses.
pub fn status(Call { server, output, .. }: Call<Status>) -> Result<ExitCode, Failure> {
    server.check_has_server()?;
    let asked = server
        .addresses
        .iter()
        .map(|address| ask(address, server.credentials()));
    let rows = block_on(async { Ok(join_all(asked).await) })?;
    let text = match output.output {
        Format::Text => table(&rows),
        Format::Json => rows.iter().map(json_line).collect(),
    };
    print(&text).map_err(Failure::runtime)?;
    let all_serve = rows.iter().all(Row::serves);
    Ok(ExitCode::from(if all_serve { 0 } else { exit::NO_SERVER }))
}

async fn ask(address: &Address, credentials: Credentials) -> Row {
    Row {
        address: address.to_string(),
        health: answered(address, credentials).await,
    }
}

async fn answered(address: &Address, credentials: Credentials) -> Result<Answered, Error> {
    let client = Client::connect_as(std::slice::from_ref(address), credentials).await?;
    let sent = clock::since_boot();
    client.health(None).await?;
    let took = clock::since_boot() - sent;
    let namespaces = client.namespaces().await;
    Ok(Answered { took, namespaces })
}

impl Row {
    /// Whether the server serves, and all its stores.
    fn serves(&self) -> bool {
        let namespaces = self.health.as_ref().map(|answered| &answered.namespaces);
        matches!(namespaces, Ok(Ok(all)) if all.iter().all(serves))
    }

    /// A word for scripts.
    fn state(&self) -> &'static str {
        match &self.health {
            Ok(_) => "serving",
            Err(Error::Unavailable { .. }) => "not serving",
            Err(_) => "no answer",
        }
    }

    /// Why the server, or the list of its namespaces, was not answered.
    fn problem(&self) -> Option<String> {
        let error = match &self.health {
            Ok(answered) => answered.namespaces.as_ref().err(),
            Err(error) => Some(error),
        };
        error.map(|error| plain(&with_causes(error)))
    }

    fn namespaces(&self) -> &[NamespaceInfo] {
        let namespaces = self.health.as_ref().map(|answered| &answered.namespaces);
        namespaces.map_or(&[], |all| all.as_ref().map_or(&[], Vec::as_slice))
    }
}

fn serves(info: &NamespaceInfo) -> bool {
    info.health() == NamespaceHealth::Serving
}

fn table(rows: &[Row]) -> String {
    let head = ["ADDRESS", "TOOK", "NAMESPACES", "STATE"];
    let mut table = Table::new(head).shrinking(&["ADDRESS", "STATE"]);
    table.rows(rows.iter().map(cells))
}

/// The state is the last column: escape codes of colours have no width, and an error may be long.
fn cells(row: &Row) -> [String; 4] {
    let paint = Paint::of(&io::stdout());
    let state = match row.health {
        Ok(_) => paint.green(row.state()),
        Err(_) => paint.red(row.state()),
    };
    let problem = row.problem().map(|problem| format!(": {problem}"));
    let troubles = row.namespaces().iter().filter(|info| !serves(info));
    let troubles = troubles.map(|info| format!("; {} {}", plain(&info.name), health(info)));
    let took = row.health.as_ref().ok().map(|answered| millis(answered.took));
    [
        plain(&row.address),
        took.map_or_else(String::new, |took| format!("{took:.1} ms")),
        count(row),
        state + &problem.unwrap_or_default() + &troubles.collect::<String>(),
    ]
}

/// How many of the namespaces serve.
fn count(row: &Row) -> String {
    match row.namespaces() {
        [] => String::new(),
        all => format!("{} of {}", all.iter().filter(|info| serves(info)).count(), all.len()),
    }
}

fn json_line(row: &Row) -> String {
    let namespaces = row.namespaces().iter().map(|info| {
        json!({
            "name": info.name,
            "health": info.health().as_str_name(),
            "reason": info.reason,
        })
    });
    let line = json!({
        "address": row.address,
        "state": row.state(),
        "tookMs": row.health.as_ref().ok().map(|answered| millis(answered.took)),
        "problem": row.problem(),
        "namespaces": namespaces.collect::<Vec<_>>(),
    });
    escaped_json(&line.to_string()) + "\n"
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
