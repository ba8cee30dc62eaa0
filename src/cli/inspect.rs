//! `fencepost get` and `check-token`: read a lock and its queue.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::SystemTime;

use fencepost::api::proto::mode::Kind;
use fencepost::api::proto::{CheckTokenResponse, Holder, LockState, Mode};
use fencepost_client::time;

use super::direct::Purpose;
use super::lock_name::LockName;
use super::output::seconds;
use super::server::Call;
use super::table::Table;
use super::unprintable::plain;
use super::{Failure, exit};

/// Show a lock.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  fencepost get default/reports\n  fencepost get default/reports -o json | jq .waiterCount"
)]
pub struct Get {
    /// The lock
    #[arg(value_name = "NAMESPACE/NAME")]
    lock: LockName,
}

/// Check a token.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 0 while the token is held, and with 122 otherwise.\n\n\
                        Example:\n  fencepost check-token default/reports \"$FENCEPOST_TOKEN\" || exit")]
pub struct CheckToken {
    /// The lock
    #[arg(value_name = "NAMESPACE/NAME")]
    lock: LockName,
    /// The fencing token
    token: u64,
}

/// Prints a lock.
pub fn get(Call { args, server, output }: Call<Get>) -> Result<(), Failure> {
    let LockName { namespace, name } = &args.lock;
    let state = server.call(Purpose::within([namespace.as_str()]), async |client| {
        client.get(namespace, name).await
    });
    let state = state.map_err(|failure| failure.about(&args.lock))?;
    output.show(&state, text).map(drop)
}

/// Prints whether a token is held, and returns the exit code.
pub fn check_token(Call { args, server, output }: Call<CheckToken>) -> Result<ExitCode, Failure> {
    let LockName { namespace, name } = &args.lock;
    let checked = server.call(Purpose::within([namespace.as_str()]), async |client| {
        client.check_token(namespace, name, args.token).await
    });
    let checked = checked.map_err(|failure| failure.about(&args.lock))?;
    output.show(&checked, held)?;
    Ok(ExitCode::from(if checked.held { 0 } else { exit::LOST }))
}

fn held(checked: &CheckTokenResponse) -> String {
    if !checked.held {
        return "not held\n".to_owned();
    }
    let left = seconds(time(checked.remaining_ttl));
    format!("held by {} for {left} unless it is renewed\n", plain(&checked.owner))
}

/// A lock with tables of its holders and waiters.
pub fn text(state: &LockState) -> String {
    let mut text = summary(state) + "\n";
    if !state.holders.is_empty() {
        let rows = state.holders.iter().map(holder);
        let head = ["HOLDER", "TOKEN", "MODE", "SINCE", "LEFT", "HOLDS", "METADATA"];
        let mut table = Table::new(head).shrinking(&["HOLDER", "METADATA"]);
        text += &format!("\n{}", table.rows(rows));
        text += &more(state.holder_count, state.holders.len());
    }
    if !state.waiters.is_empty() {
        let rows = state.waiters.iter().enumerate().map(|(at, waiter)| {
            [
                (at + 1).to_string(),
                plain(&waiter.owner),
                mode(waiter.mode.as_ref()),
                date(waiter.since),
                metadata(&waiter.metadata),
            ]
        });
        let head = ["PLACE", "WAITER", "MODE", "SINCE", "METADATA"];
        let mut table = Table::new(head).shrinking(&["WAITER", "METADATA"]);
        text += &format!("\n{}", table.rows(rows));
        text += &more(state.waiter_count, state.waiters.len());
    }
    text
}

/// A lock in one line.
pub fn summary(state: &LockState) -> String {
    let name = plain(&format!("{}/{}", state.namespace, state.name));
    let status = match (state.holder_count, state.waiter_count) {
        (0, 0) => "free".to_owned(),
        (held, waits) => counts(held, waits),
    };
    format!("{name}: {status}")
}

/// How many claims hold a lock and wait for it.
pub fn counts(held: u32, waits: u32) -> String {
    format!("{held} {}, {waits} {}", verb(held, "hold"), verb(waits, "wait"))
}

fn verb(count: u32, word: &str) -> String {
    format!("{word}{}", if count == 1 { "s" } else { "" })
}

/// The line for entries of a long queue that are not shown.
fn more(all: u32, shown: usize) -> String {
    let hidden = (all as usize).saturating_sub(shown);
    if hidden == 0 {
        String::new()
    } else {
        format!("and {hidden} more\n")
    }
}

fn holder(holder: &Holder) -> [String; 7] {
    [
        plain(&holder.owner),
        holder.fencing_token.to_string(),
        mode(holder.mode.as_ref()),
        date(holder.since),
        seconds(time(holder.remaining_ttl)),
        holder.holds.to_string(),
        metadata(&holder.metadata),
    ]
}

fn mode(mode: Option<&Mode>) -> String {
    match mode.and_then(|mode| mode.kind) {
        Some(Kind::Shared(_)) => "shared".to_owned(),
        Some(Kind::Semaphore(semaphore)) => format!("{} of {}", semaphore.permits, semaphore.limit),
        _ => "exclusive".to_owned(),
    }
}

/// A time of a response: its date and the time of day.
pub fn date(time: Option<impl TryInto<SystemTime>>) -> String {
    let time = time.and_then(|time| time.try_into().ok());
    time.map_or_else(String::new, |time| humantime::format_rfc3339_seconds(time).to_string())
}

/// The entries of metadata in one line.
pub fn metadata(all: &BTreeMap<String, String>) -> String {
    let entries: Vec<String> = all.iter().map(|(key, value)| format!("{key}={value}")).collect();
    plain(&entries.join(" "))
}
