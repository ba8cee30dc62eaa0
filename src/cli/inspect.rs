//! `fencepost get`, `list`, `watch` and `check-token`: who holds, and who waits.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::SystemTime;

use fencepost::api::proto::mode::Kind;
use fencepost::api::proto::watch_lock_response::Event;
use fencepost::api::proto::{
    CheckTokenResponse, Holder, ListLocksResponse, LockChange, LockState, LockSummary, Mode, WatchLockResponse,
};
use fencepost::client::time;
use futures::StreamExt;

use super::leases::seconds;
use super::lock_name::LockName;
use super::output::{Format, Output, Reader};
use super::server::{Server, block_on};
use super::table::Table;
use super::unprintable::plain;
use super::{Failure, exit, failure};

/// Who holds a lock.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  fencepost get default/reports\n  fencepost get default/reports -o json | jq .waiterCount"
)]
pub struct Get {
    /// The lock
    #[arg(value_name = "NAMESPACE/NAME")]
    lock: LockName,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

/// A namespace, and how the names begin that are meant.
#[derive(Debug, Clone)]
struct Names {
    namespace: String,
    prefix: String,
}

impl FromStr for Names {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, prefix) = text.split_once('/').unwrap_or((text, ""));
        Ok(Self {
            namespace: namespace.to_owned(),
            prefix: prefix.to_owned(),
        })
    }
}

/// The locks in use.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  fencepost list default\n  fencepost list default/reports/")]
pub struct List {
    /// The namespace, and optionally how the locks' names begin
    #[arg(value_name = "NAMESPACE[/PREFIX]")]
    names: Names,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

/// The changes of a lock.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  fencepost watch default/reports -o json | jq -r .change.kind")]
pub struct Watch {
    /// The lock
    #[arg(value_name = "NAMESPACE/NAME")]
    lock: LockName,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

/// Whether a token is held.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 0 while the token is held, and with 122 otherwise.\n\n\
                        Example:\n  fencepost check-token default/reports \"$FENCEPOST_TOKEN\" || exit")]
pub struct CheckToken {
    /// The lock
    #[arg(value_name = "NAMESPACE/NAME")]
    lock: LockName,
    /// The fencing token
    token: u64,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

/// Shows a lock.
pub fn get(args: Get) -> Result<(), Failure> {
    let state = block_on(async {
        let client = args.server.connect().await?;
        let state = client.get(&args.lock.namespace, &args.lock.name).await;
        state.map_err(|error| Failure::about(&args.lock, error))
    })?;
    args.output.show(&state, text).map(drop)
}

/// Lists locks, page by page as they come, so that a long list takes no room.
pub fn list(args: List) -> Result<(), Failure> {
    block_on(async {
        let client = args.server.connect().await?;
        let Names { namespace, prefix } = &args.names;
        let mut token = String::new();
        loop {
            let first = token.is_empty();
            let page = client.list(namespace, prefix, &token).await.map_err(failure)?;
            if first && page.locks.is_empty() && args.output.output == Format::Text {
                return super::output::print("no lock is in use\n")
                    .map(drop)
                    .map_err(Failure::runtime);
            }
            let reader = args.output.show(&page, summaries)?;
            token = page.next_page_token;
            if token.is_empty() || reader == Reader::Gone {
                return Ok(());
            }
        }
    })
}

/// Shows a lock's changes until it is told to end, or the server ends.
pub fn watch(args: Watch) -> Result<(), Failure> {
    block_on(async {
        let client = args.server.connect().await?;
        let about = |error| Failure::about(&args.lock, error);
        let mut seen = client
            .watch(&args.lock.namespace, &args.lock.name)
            .await
            .map_err(about)?;
        while let Some(seen) = seen.next().await {
            if args.output.show(&seen.map_err(about)?, message)? == Reader::Gone {
                break;
            }
        }
        Ok(())
    })
}

/// Says whether a token is held, with the exit code too.
pub fn check_token(args: CheckToken) -> Result<ExitCode, Failure> {
    let checked = block_on(async {
        let client = args.server.connect().await?;
        let LockName { namespace, name } = &args.lock;
        let checked = client.check_token(namespace, name, args.token).await;
        checked.map_err(|error| Failure::about(&args.lock, error))
    })?;
    args.output.show(&checked, held)?;
    Ok(ExitCode::from(if checked.held { 0 } else { exit::LOST }))
}

fn held(checked: &CheckTokenResponse) -> String {
    if !checked.held {
        return "not held\n".to_owned();
    }
    let left = seconds(time(checked.remaining_ttl));
    format!("held by {} for {left} unless it is renewed\n", plain(&checked.owner))
}

fn text(state: &LockState) -> String {
    let mut text = summary(state) + "\n";
    if !state.holders.is_empty() {
        let rows = state.holders.iter().map(holder);
        let head = ["HOLDER", "TOKEN", "MODE", "SINCE", "LEFT", "HOLDS", "METADATA"];
        text += &format!("\n{}", Table::new(head).with(rows).text());
        text += &more(state.holder_count, state.holders.len());
    }
    if !state.waiters.is_empty() {
        let rows = state.waiters.iter().enumerate().map(|(at, waiter)| {
            let since = waiter
                .since
                .map_or_else(String::new, |since| date(since.try_into().ok()));
            [
                (at + 1).to_string(),
                plain(&waiter.owner),
                mode(waiter.mode.as_ref()),
                since,
                metadata(&waiter.metadata),
            ]
        });
        let head = ["PLACE", "WAITER", "MODE", "SINCE", "METADATA"];
        text += &format!("\n{}", Table::new(head).with(rows).text());
        text += &more(state.waiter_count, state.waiters.len());
    }
    text
}

fn summary(state: &LockState) -> String {
    let name = plain(&format!("{}/{}", state.namespace, state.name));
    let use_of_it = match (state.holder_count, state.waiter_count) {
        (0, 0) => "free".to_owned(),
        (held, waits) => counts(held, waits),
    };
    format!("{name}: {use_of_it}")
}

fn counts(held: u32, waits: u32) -> String {
    format!("{held} {}, {waits} {}", verb(held, "hold"), verb(waits, "wait"))
}

fn verb(count: u32, word: &str) -> String {
    format!("{word}{}", if count == 1 { "s" } else { "" })
}

/// What a long queue has beyond what is shown.
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
        holder
            .since
            .map_or_else(String::new, |since| date(since.try_into().ok())),
        seconds(time(holder.remaining_ttl)),
        holder.holds.to_string(),
        metadata(&holder.metadata),
    ]
}

fn summaries(page: &ListLocksResponse) -> String {
    let rows = page.locks.iter().map(row);
    Table::new(["LOCK", "HOLD", "WAIT", "FIRST HOLDER", "SINCE", "LEFT"])
        .with(rows)
        .text()
}

fn row(lock: &LockSummary) -> [String; 6] {
    let first = lock.first_holder.as_ref();
    let since = first.and_then(|first| first.since);
    [
        plain(&lock.name),
        lock.holder_count.to_string(),
        lock.waiter_count.to_string(),
        first.map_or_else(String::new, |first| plain(&first.owner)),
        since.map_or_else(String::new, |since| date(since.try_into().ok())),
        first.map_or_else(String::new, |first| seconds(time(first.remaining_ttl))),
    ]
}

fn message(seen: &WatchLockResponse) -> String {
    match &seen.event {
        Some(Event::State(state)) => text(state),
        Some(Event::Change(change)) => line(change),
        None => String::new(),
    }
}

fn line(change: &LockChange) -> String {
    let word = change
        .kind()
        .as_str_name()
        .trim_start_matches("CHANGE_KIND_")
        .to_lowercase();
    let token = match change.fencing_token {
        0 => String::new(),
        token => format!(" with token {token}"),
    };
    let counts = counts(change.holder_count, change.waiter_count);
    format!("{word:8}  {}{token}: {counts}\n", plain(&change.owner))
}

fn mode(mode: Option<&Mode>) -> String {
    match mode.and_then(|mode| mode.kind) {
        Some(Kind::Shared(_)) => "shared".to_owned(),
        Some(Kind::Semaphore(semaphore)) => format!("{} of {}", semaphore.permits, semaphore.limit),
        _ => "exclusive".to_owned(),
    }
}

fn date(time: Option<SystemTime>) -> String {
    time.map_or_else(String::new, |time| humantime::format_rfc3339_seconds(time).to_string())
}

fn metadata(all: &BTreeMap<String, String>) -> String {
    let entries: Vec<String> = all.iter().map(|(key, value)| format!("{key}={value}")).collect();
    plain(&entries.join(" "))
}
