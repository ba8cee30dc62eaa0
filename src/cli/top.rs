//! `fencepost top`: the namespaces with the most claims, the longest queues, and the longest holds.
//!
//! All figures come from ListNamespaces and ListLocks, in the largest pages that the server allows. The API tells no
//! rates and no times of holds that have ended; those are metrics of the server.

mod app;
mod figures;
mod keys;
mod sample;
mod view;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use fencepost::clock;
use fencepost_client::Client;
use nix::sys::signal::Signal;
use tokio::time::sleep;

use self::app::{App, Next};
use self::keys::{Key, Keys};
use self::sample::Sample;
use super::direct::Purpose;
use super::listing::Names;
use super::lock::CommandExit;
use super::lock_name::LockName;
use super::output::{Format, Output, Reader, is_dumb, print, with_causes};
use super::screen::{self, Size};
use super::server::{Server, block_on};
use super::signals::Signals;
use super::unprintable::plain;
use super::{Failure, failure};

/// How many rows each table has at most where no terminal bounds them.
const ROWS: usize = 10;
/// The pause after a look is at least so many times as long as the look, so that a long list is not read all the time.
const PAUSE_FACTOR: u32 = 9;

const HELP: &str = "\
It reads the locks in use, up to 100,000 of each namespace, at most every --interval, and takes no
more than a tenth of the time for it. A pipe and --output json get one look.

Keys: / shows only locks whose names have a text, Enter the holders and the queue of the lock that the
arrow keys chose, Escape goes back, and q ends it. In a lock, f asks whether to release the chosen
holder by force, as `force-release` does.

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
pub fn run(args: Top) -> Result<ExitCode, Failure> {
    block_on(async {
        let namespace = args.names.iter().map(|names| names.namespace.as_str());
        let purpose = Purpose::within(namespace);
        let client = args.server.connect(purpose).await?;
        let is_live = !args.once && args.output.output == Format::Text && io::stdout().is_terminal() && !is_dumb();
        if is_live {
            return follow(&client, &args).await;
        }
        let sample = Sample::take(&client, args.names.as_ref(), "", ROWS)
            .await
            .map_err(failure)?;
        let text = match args.output.output {
            Format::Text => view::tables(&sample, ROWS, None).join("\n"),
            Format::Json => view::json_lines(&sample),
        };
        print(&text).map(|_| ExitCode::SUCCESS).map_err(Failure::runtime)
    })
}

/// Shows the figures until a key or a signal ends it.
async fn follow(client: &Client, args: &Top) -> Result<ExitCode, Failure> {
    let mut signals = Signals::take(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]).map_err(Failure::runtime)?;
    // The keys are dropped in both cases, which makes the terminal as it was.
    tokio::select! {
        done = show(client, args) => done.map(|()| ExitCode::SUCCESS),
        signal = signals.next() => Ok(CommandExit::Signal(signal).pass_on()),
    }
}

async fn show(client: &Client, args: &Top) -> Result<(), Failure> {
    let (mut app, mut keys) = (App::default(), Keys::open().ok());
    let interval = humantime::format_duration(args.interval);
    let about = format!(
        "{}, every {interval}; /: filter, Enter: open, q: end",
        args.server.text()
    );
    loop {
        let begin = clock::since_boot();
        look(client, args, &mut app).await?;
        let pause = sleep(args.interval.max((clock::since_boot() - begin) * PAUSE_FACTOR));
        tokio::pin!(pause);
        loop {
            if print(&app.frame(&about, size())).map_err(Failure::runtime)? == Reader::Closed {
                return Ok(());
            }
            let next = tokio::select! {
                () = &mut pause => Next::Look,
                key = next_key(&mut keys) => app.press(key, size()),
            };
            match next {
                Next::Draw => {}
                Next::Look => break,
                Next::End => return Ok(()),
                Next::Force(LockName { namespace, name }, token) => {
                    let forced = client.force_release(&namespace, &name, token).await;
                    app.notice = Some(match forced {
                        Ok(()) => format!("released by force: token {token}"),
                        Err(error) => plain(&with_causes(&error)),
                    });
                    break;
                }
            }
        }
    }
}

/// The next key, where there are keys.
async fn next_key(keys: &mut Option<Keys>) -> Key {
    match keys {
        Some(keys) => keys.next().await,
        None => std::future::pending().await,
    }
}

/// Reads what is shown. When no server answers, the last figures stay.
async fn look(client: &Client, args: &Top, app: &mut App) -> Result<(), Failure> {
    let read = match &mut app.opened {
        Some(opened) => {
            let LockName { namespace, name } = &opened.lock;
            client.get(namespace, name).await.map(|state| opened.state = state)
        }
        None => {
            let sample = Sample::take(client, args.names.as_ref(), &app.filter, size().rows).await;
            sample.map(|sample| app.sample = Some(sample))
        }
    };
    match read {
        Ok(()) => {
            app.problem = None;
            Ok(())
        }
        Err(error) if app.sample.is_none() => Err(failure(error)),
        Err(error) => {
            let (server, problem) = (args.server.text(), plain(&with_causes(&error)));
            app.problem = Some(format!("{server}: these figures are old: {problem}"));
            Ok(())
        }
    }
}

/// The size of the terminal, or one without an end.
fn size() -> Size {
    screen::size().unwrap_or(Size {
        columns: usize::MAX,
        rows: ROWS,
    })
}
