//! `fencepost top`: the namespaces with the most claims, the longest queues, and the longest holds.
//!
//! All figures come from ListNamespaces and ListLocks, in the largest pages that the server allows. The API tells no
//! rates and no times of holds that have ended; those are metrics of the server.

mod figures;
mod sample;
mod view;

use std::io::{self, IsTerminal};
use std::time::Duration;

use fencepost::clock;
use fencepost_client::{Client, Error};
use tokio::time::sleep;

use self::sample::Sample;
use super::listing::Names;
use super::output::{Format, Output, Reader, is_dumb, print, with_causes};
use super::screen;
use super::server::{Server, block_on};
use super::unprintable::plain;
use super::{Failure, failure};

/// How many rows each table has at most where no terminal bounds them.
const ROWS: usize = 10;
/// The pause after a look is at least so many times as long as the look, so that a long list is not read all the time.
const PAUSE_FACTOR: u32 = 9;

const HELP: &str = "\
It reads the locks in use, up to 100,000 of each namespace, at most every --interval, and takes no
more than a tenth of the time for it. Ctrl-C ends it. A pipe and --output json get one look.

Hold times are those of present holders, by this machine's clock. Rates, and the times of holds that
have ended, are metrics of the server.

Examples:
  fencepost top
  fencepost top default/reports/ --interval 10s
  fencepost top -o json | jq -r 'select(.type == \"lock\") | .name'";

/// Show the busiest namespaces and locks.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Top {
    /// A namespace, and optionally a prefix of the lock names [default: all namespaces]
    #[arg(value_name = "NAMESPACE[/PREFIX]")]
    names: Option<Names>,
    /// The time between two looks
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// Look once and exit
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    pub output: Output,
}

/// Shows the figures once, or on a terminal again and again.
pub fn run(args: Top) -> Result<(), Failure> {
    block_on(async {
        let client = args.server.connect().await?;
        let is_live = !args.once && args.output.output == Format::Text && io::stdout().is_terminal() && !is_dumb();
        if is_live {
            return follow(&client, &args).await;
        }
        let sample = look(&client, &args, ROWS).await.map_err(failure)?;
        let text = match args.output.output {
            Format::Text => view::tables(&sample, ROWS).join("\n"),
            Format::Json => view::json_lines(&sample),
        };
        print(&text).map(drop).map_err(Failure::runtime)
    })
}

async fn look(client: &Client, args: &Top, rows: usize) -> Result<Sample, Error> {
    Sample::take(client, args.names.as_ref(), rows).await
}

/// Shows the figures until the process is interrupted. When no server answers, the last figures stay.
async fn follow(client: &Client, args: &Top) -> Result<(), Failure> {
    let mut last: Option<Sample> = None;
    loop {
        let begin = clock::since_boot();
        let rows = screen::size().map_or(ROWS, |size| size.rows);
        let problem = match look(client, args, rows).await {
            Ok(sample) => {
                last = Some(sample);
                None
            }
            Err(error) if last.is_none() => return Err(failure(error)),
            Err(error) => Some(plain(&with_causes(&error))),
        };
        let took = clock::since_boot() - begin;
        if let Some(sample) = &last {
            let title = title(args, problem.as_deref());
            let frame = view::frame(&title, sample, screen::size());
            if print(&frame).map_err(Failure::runtime)? == Reader::Closed {
                return Ok(());
            }
        }
        sleep(args.interval.max(took * PAUSE_FACTOR)).await;
    }
}

/// The first line of the screen.
fn title(args: &Top, problem: Option<&str>) -> String {
    let server = args.server.text();
    match problem {
        Some(problem) => format!("{server}: these figures are old: {problem}"),
        None => {
            let interval = humantime::format_duration(args.interval);
            format!("{server}, every {interval}, Ctrl-C ends")
        }
    }
}
