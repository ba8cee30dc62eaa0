//! `fencepost list`: the locks in use.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::str::FromStr;

use fencepost::api::proto::{ListLocksResponse, LockSummary};
use fencepost_client::{Client, time};

use super::direct::Purpose;
use super::inspect::date;
use super::output::{Format, Reader, json_line_in, print, seconds};
use super::progress_line::{Progress, Shown, while_running};
use super::server::{Call, block_on};
use super::table::Table;
use super::unprintable::plain;
use super::{Failure, failure};

/// A namespace and a prefix of lock names.
#[derive(Debug, Clone)]
pub struct Names {
    pub namespace: String,
    pub prefix: String,
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

/// List the locks in use.
#[derive(Debug, clap::Args)]
#[command(after_help = "With --output json, each line is one lock.\n\n\
                        Examples:\n  fencepost list\n  fencepost list default\n  fencepost list default/reports/\n  \
                        fencepost list -o json | jq -r 'select(.waiterCount > 9) | .name'")]
pub struct List {
    /// The namespace, and optionally a prefix of the lock names [default: all namespaces]
    #[arg(value_name = "NAMESPACE[/PREFIX]")]
    names: Option<Names>,
}

/// Lists locks page by page as they arrive, so that a long list needs little memory. Where they do not go to the
/// terminal, it shows how many there are so far.
pub fn list(list: Call<List>) -> Result<(), Failure> {
    let count = Cell::new(0);
    let work = block_on(async {
        let work = list_all(&list, &count);
        if io::stdout().is_terminal() {
            return work.await;
        }
        let progress = async || Progress::of(format!("locks so far: {}", count.get()));
        while_running(work, Shown::OnTerminal, progress).await
    });
    work?;
    if count.get() == 0 && list.output.output == Format::Text {
        print("no lock is in use\n").map_err(Failure::runtime)?;
    }
    Ok(())
}

async fn list_all(Call { args, server, output }: &Call<List>, count: &Cell<usize>) -> Result<(), Failure> {
    let namespace = args.names.iter().map(|names| names.namespace.as_str());
    let client = server.connect(Purpose::within(namespace)).await?;
    let names = match &args.names {
        Some(names) => vec![names.clone()],
        None => all_names(&client).await?,
    };
    let mut table =
        Table::new(["LOCK", "HOLD", "WAIT", "FIRST HOLDER", "SINCE", "LEFT"]).shrinking(&["LOCK", "FIRST HOLDER"]);
    for names in &names {
        let prefix = match args.names {
            Some(_) => String::new(),
            None => format!("{}/", names.namespace),
        };
        let reader = list_in(&client, names, |page| {
            count.set(count.get() + page.locks.len());
            let text = match output.output {
                // No header where nothing is below it.
                Format::Text if page.locks.is_empty() => String::new(),
                Format::Text => table.rows(page.locks.iter().map(|lock| row(lock, &prefix))),
                Format::Json => {
                    let lines = page.locks.iter().map(|lock| json_line_in(&names.namespace, lock));
                    lines.collect::<Result<String, _>>()?
                }
            };
            print(&text).map_err(Failure::runtime)
        });
        if reader.await? == Reader::Closed {
            break;
        }
    }
    Ok(())
}

/// The locks of all namespaces.
async fn all_names(client: &Client) -> Result<Vec<Names>, Failure> {
    let all = client.namespaces().await.map_err(failure)?.into_iter();
    let names = all.map(|info| Names {
        namespace: info.name,
        prefix: String::new(),
    });
    Ok(names.collect())
}

/// Shows all pages of a namespace, until the reader is gone.
async fn list_in(
    client: &Client,
    names: &Names,
    mut show: impl FnMut(&ListLocksResponse) -> Result<Reader, Failure>,
) -> Result<Reader, Failure> {
    let mut token = String::new();
    loop {
        let page = client.list(&names.namespace, &names.prefix, &token).await;
        let page = page.map_err(failure)?;
        let reader = show(&page)?;
        token = page.next_page_token;
        if token.is_empty() || reader == Reader::Closed {
            return Ok(reader);
        }
    }
}

fn row(lock: &LockSummary, prefix: &str) -> [String; 6] {
    let first = lock.first_holder.as_ref();
    [
        prefix.to_owned() + &plain(&lock.name),
        lock.holder_count.to_string(),
        lock.waiter_count.to_string(),
        first.map_or_else(String::new, |first| plain(&first.owner)),
        date(first.and_then(|first| first.since)),
        first.map_or_else(String::new, |first| seconds(time(first.remaining_ttl))),
    ]
}
