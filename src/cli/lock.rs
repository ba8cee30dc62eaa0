//! `fencepost lock`: a command that runs under a lock, and never longer than the lock is held.
//!
//! The command has a process group of its own. The moment the lease is or may be lost the whole group
//! is ended: TERM while there is still time, and KILL before the end until which the lease can be
//! counted on. Should this process itself be killed or stopped, the [`watchdog`] does it.

mod child;
mod signal_forwarding;
mod terminal;
mod watchdog;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use fencepost::client::{Client, Error, LockGuard, Loss, time};
use fencepost::clock;
use nix::sys::signal::Signal;

use self::child::{Child, ChildEvent};
use self::signal_forwarding::SignalForwarding;
use self::terminal::Terminal;
use self::watchdog::Watchdog;
pub use self::watchdog::watchdog;
use super::lock_request::LockRequest;
use super::output::say;
use super::server::{Server, block_on};
use super::unprintable::plain;
use super::{Failure, exit, waiting};

/// How long before the end of its time the last process is killed, for a kill takes a moment. Half of
/// it is left when the warden does it.
const MARGIN: Duration = Duration::from_millis(100);
/// No more than this part of the time to live goes to the grace, and of that to the margin: the rest
/// is for renewals.
const PARTS: u32 = 4;
/// How often a group that was told to end is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How long a lease is tried to be given back at least.
const LAST_RELEASE: Duration = Duration::from_millis(500);
/// How long the system may take to end what was killed.
const KILLED: Duration = Duration::from_secs(5);

const HELP: &str = "\
The command gets FENCEPOST_TOKEN, the fencing token to send along with every write, and
FENCEPOST_LEASE_ID, FENCEPOST_NAMESPACE, FENCEPOST_LOCK and FENCEPOST_ADDR, with the variables of
the files that were given. Signals are passed on
to it and to all of its process group. What it leaves running in that group is ended before the
lock is given back.

Exit codes: the command's own, 128 and the number of the signal that ended it, and
    2  wrong arguments
  120  the lock is held by another
  121  the wait ran out
  122  the lease was or may have been lost: the command was ended, or worked without the lock
  123  no server answers, or it or its store cannot serve now
  125  it failed otherwise
  126  the command cannot be run
  127  there is no such command

Examples:
  fencepost lock default/reports -- ./make-reports
  fencepost lock default/deploy --wait 10m --ttl 1m -- sh -c 'deploy --token \"$FENCEPOST_TOKEN\"'
  fencepost lock default/gpu --permits 1 --limit 4 --wait 1h -- ./train";

/// Run a command under a lock.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Lock {
    #[command(flatten)]
    asking: LockRequest,
    /// How long the command has between TERM and KILL when it must end; at most a quarter of the TTL
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    grace: Duration,
    #[command(flatten)]
    server: Server,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How the command ended.
#[derive(Debug)]
enum Ended {
    /// By itself, with this code.
    ByItself(u8),
    /// It was ended, for this reason.
    Lost(Loss),
}

/// A command was ended, or worked without its lock.
#[derive(Debug, thiserror::Error)]
#[error("{lock}: {loss}; {consequence}")]
struct Lost {
    lock: String,
    loss: Loss,
    consequence: &'static str,
}

/// Runs the command.
pub fn run(args: Lock) -> Result<ExitCode, Failure> {
    block_on(locked(&args)).map_err(|failure| failure.or_code(exit::LOCK_FAILED))
}

async fn locked(args: &Lock) -> Result<ExitCode, Failure> {
    let mut passing = SignalForwarding::take().map_err(Failure::runtime)?;
    let mut guard = tokio::select! {
        granted = taken(args) => granted?,
        signal = passing.next() => return Ok(ExitCode::from(child::code_of(signal))),
    };
    let ended = under(&mut guard, args, &mut passing).await;
    // Past its end there is nothing left to give back, whoever does not answer.
    let patience = guard.remaining().max(LAST_RELEASE);
    let released = tokio::time::timeout(patience, guard.release()).await;
    let released = released.unwrap_or_else(|_| Err(args.unanswered()));
    match (ended?, released) {
        (Ended::Lost(loss), _) => Err(args.lost(loss, "the command was ended")),
        (Ended::ByItself(_), Err(Error::LeaseLost { cause })) => Err(args.lost(
            Loss::Gone { cause },
            "the command may have worked beside another holder",
        )),
        (Ended::ByItself(code), released) => {
            if let Err(error) = released {
                say(&plain(&format!(
                    "warning: the lock could not be given back and ends by itself: {error}"
                )));
            }
            Ok(ExitCode::from(code))
        }
    }
}

async fn taken(args: &Lock) -> Result<LockGuard, Failure> {
    let client: Client = args.server.connect().await?;
    let granted = waiting::shown(&client, &args.asking, args.asking.acquire(&client)).await;
    granted.map_err(|error| args.asking.failure(error))
}

impl Lock {
    fn lost(&self, loss: Loss, consequence: &'static str) -> Failure {
        let lock = self.asking.lock.to_string();
        Failure::coded(
            exit::LOST,
            Lost {
                lock,
                loss,
                consequence,
            },
        )
    }

    /// Nobody answered in time.
    fn unanswered(&self) -> Error {
        Error::Unreachable {
            addresses: self.server.text(),
            problem: "nothing came while the lease lived".to_owned(),
        }
    }

    /// What the command finds in its environment.
    fn environment(&self, guard: &LockGuard) -> impl Iterator<Item = (&'static str, OsString)> {
        let lease = guard.lease();
        let own = [
            ("FENCEPOST_TOKEN", lease.fencing_token.to_string()),
            ("FENCEPOST_LEASE_ID", lease.lease_id.clone()),
            ("FENCEPOST_NAMESPACE", lease.namespace.clone()),
            ("FENCEPOST_LOCK", lease.name.clone()),
        ];
        let own = own.map(|(name, value)| (name, value.into()));
        own.into_iter().chain(self.server.environment())
    }
}

/// How a group is ended in time.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Between TERM and KILL.
    grace: Duration,
    /// Between KILL and the end of the lease.
    margin: Duration,
}

impl Limits {
    fn of(guard: &LockGuard, grace: Duration) -> Self {
        let most = time(guard.lease().ttl) / PARTS;
        Self {
            grace: grace.min(most),
            margin: MARGIN.min(most / PARTS),
        }
    }
}

/// Runs the command while the lease is held, and leaves nothing of it behind.
async fn under(guard: &mut LockGuard, args: &Lock, passing: &mut SignalForwarding) -> Result<Ended, Failure> {
    let limits = Limits::of(guard, args.grace);
    let before = limits.grace + limits.margin;
    if guard.remaining() <= before {
        return Ok(Ended::Lost(Loss::Unrenewed));
    }
    let mut end = guard.end();
    let mut watchdog = Watchdog::start().map_err(Failure::runtime)?;
    let terminal = Terminal::at_hand();
    let mut child = Child::start(&args.command, args.environment(guard))?;
    watchdog.watch(child.group(), end.saturating_sub(limits.margin / 2));
    terminal.lend(child.group());
    let ending = guard.ending(before);
    tokio::pin!(ending);
    let ended = loop {
        tokio::select! {
            biased;
            loss = &mut ending => break Ended::Lost(loss),
            happened = child.next() => match happened {
                ChildEvent::Ended(code) => break Ended::ByItself(code),
                ChildEvent::Stopped(signal) => {
                    terminal.stopped(child.group(), signal, || guard.is_held());
                }
            },
            renewed = guard.renewed() => if let Some(renewed) = renewed {
                end = renewed;
                watchdog.watch(child.group(), end.saturating_sub(limits.margin / 2));
            },
            signal = passing.next() => child.group().signal(signal),
        }
    };
    end_all(&mut child, end, limits).await;
    terminal.take_back(child.group());
    watchdog.dismiss();
    Ok(ended)
}

/// Ends what is left of the group: by TERM, and after the grace, or before the lease ends, by KILL.
async fn end_all(child: &mut Child, end: Duration, limits: Limits) {
    let group = child.group();
    let kill = end
        .saturating_sub(limits.margin)
        .min(clock::since_boot() + limits.grace);
    if child.is_over() {
        return;
    }
    group.signal(Signal::SIGTERM);
    // One that is stopped would not hear of it.
    group.signal(Signal::SIGCONT);
    while clock::since_boot() < kill {
        child.happens_within(LOOK).await;
        if child.is_over() {
            return;
        }
    }
    group.signal(Signal::SIGKILL);
    let given_up = clock::since_boot() + KILLED;
    while !child.is_over() && clock::since_boot() < given_up {
        child.happens_within(LOOK).await;
    }
}
