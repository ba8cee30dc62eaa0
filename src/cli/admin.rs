//! `fencepost force-release`, `admit`, `namespaces` and `sessions`: commands for operators.

use std::io;
use std::time::Duration;

use fencepost::api::proto::{
    AdmitResponse, ForceReleaseResponse, NamespaceHealth, NamespaceInfo, NamespaceLimits, SessionInfo, SessionKind,
};
use fencepost_client::time;

use super::direct::Purpose;
use super::inspect::date;
use super::leases::guarantee;
use super::lock_name::LockName;
use super::output::{Format, Paint, Reader, json_line, print};
use super::server::{Call, block_on};
use super::table::Table;
use super::unprintable::plain;
use super::{Failure, failure};

/// Force-release a lock.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The holder is notified at once if this server keeps its lease by a stream, as for\n\
                        `fencepost lock`; at another server at once or with its next renewal. Until then it may\n\
                        go on working.\n\n\
                        Example:\n  fencepost get default/reports\n  fencepost force-release default/reports 1795258800000000 --reason 'its host is gone'"
)]
pub struct ForceRelease {
    /// The lock
    #[arg(value_name = "NAMESPACE/NAME")]
    lock: LockName,
    /// The fencing token of the holder, from `get`
    token: u64,
    /// Why, for the audit log of the server
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

/// End the quarantine of stores.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A store that may have lost leases grants nothing until the longest TTL has passed. End that only if no\n\
                        lease can still be in use. Where a server doubts its clock, this says that the clock is right.\n\n\
                        Examples:\n  fencepost namespaces\n  fencepost admit default\n  fencepost admit jobs --node 10.0.1.1:6379"
)]
pub struct Admit {
    /// The namespaces
    #[arg(value_name = "NAMESPACE", required = true)]
    namespaces: Vec<String>,
    /// One node of their store, as `namespaces` names it [default: the whole store]
    #[arg(long, value_name = "NODE", default_value = "", hide_default_value = true)]
    node: String,
}

/// List all namespaces.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  fencepost namespaces -o json | jq -r '.name, .health'")]
pub struct Namespaces {}

/// List the open sessions of a server.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Sessions are the open KeepAlive and Session streams of the server that is asked; ask each server for its own.\n\
                        With --output json, each line is one session, with the first 100 locks that it keeps.\n\n\
                        Examples:\n  fencepost sessions\n  fencepost sessions --addr 10.0.0.5:50051 -o json | jq -r 'select(.waits > 100) | .peer'"
)]
pub struct Sessions {}

/// Forcibly releases the holder with a token.
pub fn force_release(Call { args, server, output }: Call<ForceRelease>) -> Result<(), Failure> {
    let ForceRelease { lock, token, reason } = &args;
    let LockName { namespace, name } = lock;
    let purpose = Purpose::within([namespace.as_str()]);
    let forced = server.call(purpose, async |client| {
        client.force_release_with_reason(namespace, name, *token, reason).await
    });
    forced.map_err(|failure| failure.about(&args.lock))?;
    let text = |_: &_| "released by force\n".to_owned();
    output.show(&ForceReleaseResponse {}, text).map(drop)
}

/// Ends the quarantines of the namespaces, up to the first that fails.
pub fn admit(Call { args, server, output }: Call<Admit>) -> Result<(), Failure> {
    block_on(async {
        let namespaces = args.namespaces.iter().map(String::as_str);
        let client = server.connect(Purpose::within(namespaces)).await?;
        for namespace in &args.namespaces {
            client.admit(namespace, &args.node).await.map_err(failure)?;
            let text = |_: &_| format!("{}: admitted\n", plain(namespace));
            output.show(&AdmitResponse {}, text)?;
        }
        Ok(())
    })
}

/// Prints all namespaces.
pub fn namespaces(Call { server, output, .. }: Call<Namespaces>) -> Result<(), Failure> {
    let namespaces = server.call(Purpose::default(), async |client| client.namespaces().await)?;
    let text = match output.output {
        Format::Text => quarantines(&namespaces) + &table(&namespaces),
        Format::Json => namespaces.iter().map(json_line).collect::<Result<String, _>>()?,
    };
    print(&text).map(drop).map_err(Failure::runtime)
}

/// Prints the open sessions of the server that is asked, page by page.
pub fn sessions(Call { server, output, .. }: Call<Sessions>) -> Result<(), Failure> {
    let head = [
        "NUMBER", "KIND", "CLIENT", "IDENTITY", "PEER", "SINCE", "LEASES", "COMMANDS", "WAITS", "UNSENT",
    ];
    let mut table = Table::new(head).shrinking(&["CLIENT", "IDENTITY"]);
    block_on(async {
        let client = server.connect(Purpose::default()).await?;
        let (mut token, mut is_first) = (String::new(), true);
        loop {
            let page = client.sessions(&token).await.map_err(failure)?;
            let text = match output.output {
                Format::Text if page.sessions.is_empty() && is_first => "no session is open\n".to_owned(),
                Format::Text => table.rows(page.sessions.iter().map(session)),
                Format::Json => page.sessions.iter().map(json_line).collect::<Result<String, _>>()?,
            };
            is_first = false;
            token = page.next_page_token;
            if print(&text).map_err(Failure::runtime)? == Reader::Closed || token.is_empty() {
                return Ok(());
            }
        }
    })
}

fn session(info: &SessionInfo) -> [String; 10] {
    let kind = match info.kind() {
        SessionKind::KeepAlive => "KeepAlive",
        SessionKind::Session => "Session",
        SessionKind::Unspecified => "unknown",
    };
    [
        info.number.to_string(),
        kind.to_owned(),
        plain(format!("{} {}", info.client_name, info.client_version).trim()),
        plain(&info.identity),
        plain(&info.peer),
        date(info.since),
        info.attached_leases.to_string(),
        info.commands_in_flight.to_string(),
        info.waits.to_string(),
        info.unsent_bytes.to_string(),
    ]
}

/// What to do about quarantines, before the table, which a narrow terminal cuts.
fn quarantines(namespaces: &[NamespaceInfo]) -> String {
    let quarantined = namespaces
        .iter()
        .filter(|info| info.health() == NamespaceHealth::Quarantined);
    let line = |info: &NamespaceInfo| {
        let (name, reason, left) = (
            plain(&info.name),
            plain(&info.reason),
            remaining(time(info.quarantine_left)),
        );
        format!(
            "{name} grants nothing for another {left}: {reason}. \
             If no lease can be left, end that: fencepost admit {name}\n"
        )
    };
    quarantined.map(line).collect()
}

fn table(namespaces: &[NamespaceInfo]) -> String {
    let head = [
        "NAMESPACE",
        "STORE",
        "GUARANTEE",
        "TTL",
        "WAIT",
        "QUEUE",
        "MODES",
        "HEALTH",
    ];
    let mut table = Table::new(head).shrinking(&["NAMESPACE", "TTL", "MODES", "HEALTH"]);
    table.rows(namespaces.iter().map(row))
}

/// Health is the last column: escape codes of colours have no width, and a reason may be long.
fn row(info: &NamespaceInfo) -> [String; 8] {
    let limits = info.limits.unwrap_or_default();
    let reentry = info.reentry.then_some("re-entry");
    let modes: Vec<&str> = info.modes.iter().map(String::as_str).chain(reentry).collect();
    [
        plain(&info.name),
        plain(&info.backend),
        guarantee(info.guarantee()).to_owned(),
        ttl(&limits),
        format!("to {}", short(time(limits.wait_max))),
        format!("to {}", limits.queue_limit),
        plain(&modes.join(" ")),
        health(info),
    ]
}

fn ttl(limits: &NamespaceLimits) -> String {
    let [min, default, max] = [limits.ttl_min, limits.ttl_default, limits.ttl_max].map(time);
    format!("{} ({} to {})", short(default), short(min), short(max))
}

fn short(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

/// The rest of a quarantine, in whole seconds.
fn remaining(time: Duration) -> String {
    short(Duration::from_secs(time.as_secs()))
}

/// The health of the store. While it serves, also the nodes that do not; otherwise its reason names
/// them.
pub fn health(info: &NamespaceInfo) -> String {
    let store = health_text(info.health(), &info.reason, time(info.quarantine_left));
    let serves = |health: NamespaceHealth| health == NamespaceHealth::Serving;
    let missing = info
        .nodes
        .iter()
        .filter(|node| serves(info.health()) && !serves(node.health()));
    let missing = missing.map(|node| {
        let node_health = health_text(node.health(), &node.reason, time(node.quarantine_left));
        format!("; {} {node_health}", plain(&node.name))
    });
    store + &missing.collect::<String>()
}

fn health_text(health: NamespaceHealth, reason: &str, left: Duration) -> String {
    let paint = Paint::of(&io::stdout());
    let reason = match reason {
        "" => String::new(),
        reason => format!(": {}", plain(reason)),
    };
    match health {
        NamespaceHealth::Serving => paint.green("serving") + &reason,
        NamespaceHealth::Quarantined => {
            let left = remaining(left);
            paint.yellow(&format!("quarantined for {left}")) + &reason
        }
        NamespaceHealth::Unavailable => paint.red("unavailable") + &reason,
        NamespaceHealth::Unspecified => "unknown".to_owned() + &reason,
    }
}
