//! `fencepost watch`: the state of a lock, or of the locks with a prefix, and each change.
//!
//! The API watches one lock with each stream. A prefix is listed again and again, and each lock of the list is watched.

use std::collections::HashSet;
use std::time::Duration;

use fencepost::api::proto::watch_lock_response::Event;
use fencepost::api::proto::{LockChange, WatchLockResponse};
use fencepost::clock;
use fencepost_client::{Client, Error};
use futures::future::try_join_all;
use futures::stream::{BoxStream, SelectAll, StreamExt};
use tokio::time::{MissedTickBehavior, interval};

use super::following::follow;
use super::inspect::{counts, date, metadata, summary, text};
use super::listing::Names;
use super::lock_name::LockName;
use super::output::{Format, Output, Reader, json_line_with, print, print_line};
use super::server::{Call, block_on};
use super::unprintable::plain;
use super::{Failure, failure};

/// How many locks of a prefix are watched at most, each with a stream.
const LOCKS_AT_MOST: usize = 200;
/// The time between two lists of a prefix.
const LIST_INTERVAL: Duration = Duration::from_secs(2);
/// How long lists may fail, which is as long as a stream is opened again.
const OUTAGE: Duration = Duration::from_secs(60);

const HELP: &str = "\
With --prefix, the names are read every 2 s, and what happens to a lock before its name is read is
not shown. 200 locks are watched at most.

Examples:
  fencepost watch default/reports -o json | jq -r .change.kind
  fencepost watch --prefix default/reports/
  fencepost watch --prefix default -o json | jq -r 'select(.change) | .name'";

/// Watch locks.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Watch {
    /// The lock
    #[arg(value_name = "NAMESPACE/NAME", required_unless_present = "prefix")]
    lock: Option<LockName>,
    /// Watch the locks in use whose names begin so, also those that are taken later
    #[arg(long, value_name = "NAMESPACE[/PREFIX]", conflicts_with = "lock")]
    prefix: Option<Names>,
}

/// Prints the changes of locks until the process is interrupted or no server answers for a minute.
pub fn watch(Call { args, server, output }: Call<Watch>) -> Result<(), Failure> {
    if let Some(names) = &args.prefix {
        return block_on(async {
            let client = server.connect().await?;
            watch_prefix(&client, names, output).await
        });
    }
    let Some(lock) = &args.lock else { return Ok(()) };
    let watch = async |client: &Client| client.watch(&lock.namespace, &lock.name).await;
    let followed = follow(&server, watch, |event| output.show(event, message));
    followed.map_err(|failure| failure.about(lock))
}

fn message(response: &WatchLockResponse) -> String {
    match &response.event {
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
    let time = date(change.time);
    let labels = match metadata(&change.metadata) {
        labels if labels.is_empty() => labels,
        labels => format!("  {labels}"),
    };
    format!("{time}  {word:8}  {}{token}: {counts}{labels}\n", plain(&change.owner))
}

/// A message of one of the locks with a prefix.
type Message = (String, Result<WatchLockResponse, Error>);

/// The locks with a prefix that are watched.
struct Watched<'a> {
    client: &'a Client,
    names: &'a Names,
    known: HashSet<String>,
    messages: SelectAll<BoxStream<'static, Message>>,
}

async fn watch_prefix(client: &Client, names: &Names, output: Output) -> Result<(), Failure> {
    let (known, messages) = (HashSet::new(), SelectAll::new());
    let mut watched = Watched {
        client,
        names,
        known,
        messages,
    };
    let mut ticks = interval(LIST_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut listed = None;
    loop {
        tokio::select! {
            Some((name, message)) = watched.messages.next() => {
                let message = message.map_err(failure)?;
                if show(&names.namespace, &name, &message, output)? == Reader::Closed {
                    return Ok(());
                }
            }
            _ = ticks.tick() => match watched.add_new().await {
                Ok(()) => listed = Some(clock::since_boot()),
                Err(Error::Unreachable { .. } | Error::Unavailable { .. })
                    if listed.is_some_and(|last| clock::since_boot() < last + OUTAGE) => {}
                Err(error) => return Err(failure(error)),
            }
        }
    }
}

impl Watched<'_> {
    /// Watches the locks in use that are not watched yet, up to the limit.
    async fn add_new(&mut self) -> Result<(), Error> {
        let Names { namespace, prefix } = self.names;
        let mut token = String::new();
        while self.known.len() < LOCKS_AT_MOST {
            let page = self.client.list(namespace, prefix, &token).await?;
            let names = page.locks.into_iter().map(|lock| lock.name);
            let new = names.filter(|name| !self.known.contains(name));
            let new: Vec<String> = new.take(LOCKS_AT_MOST - self.known.len()).collect();
            let streams = new.iter().map(|name| self.client.watch(namespace, name));
            for (name, stream) in new.iter().zip(try_join_all(streams).await?) {
                let own = name.clone();
                self.messages
                    .push(stream.map(move |message| (own.clone(), message)).boxed());
            }
            self.known.extend(new);
            if self.known.len() == LOCKS_AT_MOST {
                print_line(&format!("warning: {LOCKS_AT_MOST} locks are watched, and no others"));
            }
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// Shows a message in a line that names the lock.
fn show(namespace: &str, name: &str, message: &WatchLockResponse, output: Output) -> Result<Reader, Failure> {
    let text = match (output.output, &message.event) {
        (Format::Json, _) => json_line_with(&[("namespace", namespace), ("name", name)], message)?,
        (Format::Text, Some(Event::State(state))) => summary(state) + "\n",
        (Format::Text, Some(Event::Change(change))) => {
            format!("{}: {}", plain(&format!("{namespace}/{name}")), line(change))
        }
        (Format::Text, None) => String::new(),
    };
    print(&text).map_err(Failure::runtime)
}
