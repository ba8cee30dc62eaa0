//! `fencepost watch`: the state of a lock, or of the locks with a prefix, and each change.
//!
//! The API watches one lock with each stream. A prefix is listed again and again, and each lock of the list is watched.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use fencepost::api::proto::watch_lock_response::Event;
use fencepost::api::proto::{LockChange, WatchLockResponse};
use fencepost::clock;
use fencepost_client::{Client, Error};
use futures::future::try_join_all;
use futures::stream::BoxStream;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::{StreamExt, StreamMap};

use super::direct::Purpose;
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
not shown. The first 200 locks are watched.

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
            let client = server.connect(Purpose::within([names.namespace.as_str()])).await?;
            watch_prefix(&client, names, output).await
        });
    }
    let Some(lock) = &args.lock else { return Ok(()) };
    let watch = async |client: &Client| client.watch(&lock.namespace, &lock.name).await;
    let purpose = Purpose::within([lock.namespace.as_str()]);
    let followed = follow((&server, purpose), watch, |event| output.show(event, message));
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

/// The locks with a prefix that are watched.
struct Watched<'a> {
    client: &'a Client,
    names: &'a Names,
    streams: StreamMap<String, BoxStream<'static, Result<WatchLockResponse, Error>>>,
    /// The names that were not in the last list. Their last changes may still arrive.
    absent: HashSet<String>,
}

async fn watch_prefix(client: &Client, names: &Names, output: Output) -> Result<(), Failure> {
    let mut watched = Watched {
        client,
        names,
        streams: StreamMap::new(),
        absent: HashSet::new(),
    };
    let mut ticks = interval(LIST_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut listed = None;
    loop {
        tokio::select! {
            Some((name, message)) = watched.streams.next() => {
                let message = message.map_err(failure)?;
                if show(&names.namespace, &name, &message, output)? == Reader::Closed {
                    return Ok(());
                }
            }
            _ = ticks.tick() => match watched.follow_list().await {
                Ok(()) => listed = Some(clock::since_boot()),
                Err(Error::Unreachable { .. } | Error::Unavailable { .. })
                    if listed.is_some_and(|last| clock::since_boot() < last + OUTAGE) => {}
                Err(error) => return Err(failure(error)),
            }
        }
    }
}

impl Watched<'_> {
    /// Watches the locks in use that are not watched yet, up to the limit, in place of those that two lists lacked.
    async fn follow_list(&mut self) -> Result<(), Error> {
        let listed = self.listed().await?;
        let absent = self.streams.keys().filter(|name| !listed.contains(*name));
        let absent: HashSet<String> = absent.cloned().collect();
        for gone in absent.intersection(&self.absent) {
            self.streams.remove(gone);
        }
        self.absent = absent;
        let was_full = self.streams.len() == LOCKS_AT_MOST;
        let new = listed.iter().filter(|name| !self.streams.contains_key(*name));
        let new: Vec<_> = new.take(LOCKS_AT_MOST.saturating_sub(self.streams.len())).collect();
        let streams = new.iter().map(|name| self.client.watch(&self.names.namespace, name));
        for (name, stream) in new.iter().zip(try_join_all(streams).await?) {
            self.streams.insert(name.to_string(), stream);
        }
        if self.streams.len() == LOCKS_AT_MOST && !was_full {
            print_line(&format!("warning: {LOCKS_AT_MOST} locks are watched, and no others"));
        }
        Ok(())
    }

    /// The names of the first locks in use, at least as many as may be watched.
    async fn listed(&self) -> Result<BTreeSet<String>, Error> {
        let Names { namespace, prefix } = self.names;
        let (mut listed, mut token) = (BTreeSet::new(), String::new());
        loop {
            let page = self.client.list(namespace, prefix, &token).await?;
            listed.extend(page.locks.into_iter().map(|lock| lock.name));
            token = page.next_page_token;
            if token.is_empty() || listed.len() >= LOCKS_AT_MOST {
                return Ok(listed);
            }
        }
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
