//! `fencepost lock`: runs a command under a lock, and never longer than the lock is held.
//!
//! The command runs in its own process group. When the lease is or may be lost, the whole group is ended: by SIGTERM
//! while there is time, and by SIGKILL before the end of the lease. If this process is killed or stopped itself, the
//! [`watchdog`] kills the group.

mod at_least;
mod child;
mod held;
mod terminal;
mod watchdog;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use fencepost::clock;
use fencepost_client::{Client, Error, Loss};
use nix::sys::signal::Signal;

pub use self::child::CommandExit;
use self::child::{Child, ChildEvent};
use self::held::HeldLocks;
use self::terminal::Terminal;
use self::watchdog::Watchdog;
pub use self::watchdog::watchdog;
use super::direct::Purpose;
use super::lock_name::LockName;
use super::lock_request::LockRequest;
use super::output::print_line;
use super::server::{Server, block_on};
use super::signals::Signals;
use super::unprintable::plain;
use super::{Failure, exit, failure, progress_line};

/// Signals that users and systems send to control a command, and that are forwarded to it.
const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];
/// How long before the end of the lease the last process is killed, because a kill takes a moment. The watchdog kills
/// after half of it.
const KILL_MARGIN: Duration = Duration::from_millis(100);
/// At most this fraction of the TTL is used for the grace, and of that for the margin. The rest is for renewals.
const MAX_FRACTION: u32 = 4;
/// The interval between checks of a group that is ending.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long killed processes may take to end.
const KILL_WAIT: Duration = Duration::from_secs(5);

const HELP: &str = "\
The command gets FENCEPOST_TOKEN, the fencing token to send with every write,
FENCEPOST_LEASE_ID, FENCEPOST_LOCK, FENCEPOST_NAMESPACE and FENCEPOST_ADDR, with the variables of
the files that were given; with several locks, the first three have one line for each. Signals are forwarded
to it and its whole process group. Processes that it leaves in that group are ended before the
lock is released.

Exit codes: the command's own, 128 and the number of the signal that ended it (SIGINT ends this
process too, so that a shell sees Ctrl-C), and
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
  fencepost lock default/gpu --permits 1 --limit 4 --wait 1h -- ./train
  fencepost lock default/accounts/a default/accounts/b --wait 10s -- ./transfer
  fencepost lock default/nightly --at-least 10m -- ./report    # once, on machines whose clocks differ";

/// Run a command under a lock.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Lock {
    #[command(flatten)]
    request: LockRequest,
    /// Other locks of the same namespace: the command runs when all are held, and none is held before
    #[arg(value_name = "NAMESPACE/NAME", conflicts_with_all = ["shared", "permits", "limit"])]
    others: Vec<LockName>,
    /// The time between TERM and KILL when the command must end; at most a quarter of the TTL
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// The time for which the lock stays held from its grant on, even if the command ends sooner
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    at_least: Option<Duration>,
    #[command(flatten)]
    server: Server,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How the command ended.
#[derive(Debug)]
enum Ended {
    /// It ended by itself.
    Exited(CommandExit),
    /// It was ended because of this loss.
    Lost(Loss),
}

/// The lease was lost while the command ran.
#[derive(Debug, thiserror::Error)]
#[error("{lock}: {loss}; {consequence}")]
struct Lost {
    lock: String,
    loss: Loss,
    consequence: &'static str,
}

/// Runs the command under the lock.
pub fn run(args: Lock) -> Result<ExitCode, Failure> {
    let ended = block_on(run_locked(&args)).map_err(|failure| failure.or_code(exit::LOCK_FAILED));
    ended.map(CommandExit::pass_on)
}

async fn run_locked(args: &Lock) -> Result<CommandExit, Failure> {
    let mut signals = Signals::take(&FORWARDED).map_err(Failure::runtime)?;
    let mut guard = tokio::select! {
        granted = acquire(args) => granted?,
        signal = signals.next() => return Ok(CommandExit::Signal(signal)),
    };
    let granted = clock::since_boot();
    let ended = run_child(&mut guard, args, &mut signals).await;
    let to_release = match (&ended, args.at_least) {
        (Ok(Ended::Exited(_)), Some(time)) => at_least::held_until(granted + time, guard, &mut signals).await,
        _ => Some(guard),
    };
    let released = match to_release {
        Some(guard) => guard.release(&args.unanswered()).await,
        None => Ok(()),
    };
    match (ended?, released) {
        (Ended::Lost(loss), _) => Err(args.lost(loss, "the command was ended")),
        (Ended::Exited(_), Err(Error::LeaseLost { cause })) => Err(args.lost(
            Loss::Gone { cause },
            "the command may have run while another claim held the lock",
        )),
        (Ended::Exited(exit), released) => {
            if let Err(error) = released {
                print_line(&plain(&format!(
                    "warning: the lock was not released and will expire: {error}"
                )));
            }
            Ok(exit)
        }
    }
}

async fn acquire(args: &Lock) -> Result<HeldLocks, Failure> {
    let namespace = &args.request.lock.namespace;
    if let Some(other) = args.others.iter().find(|other| other.namespace != *namespace) {
        let (first, other) = (args.request.lock.clone(), other.clone());
        return Err(Failure::usage(TwoNamespaces { first, other }));
    }
    if let Some(twice) = args.locks().enumerate().find_map(|(at, lock)| {
        let is_twice = args.locks().take(at).any(|earlier| earlier.name == lock.name);
        is_twice.then(|| lock.clone())
    }) {
        return Err(Failure::usage(SameLockTwice { lock: twice }));
    }
    let (begin, purpose) = (clock::since_boot(), Purpose::acquiring(namespace, args.request.wait));
    let client: Client = args.server.connect(purpose).await?;
    let request = &args.request.after(args.server.direct_time(begin));
    if !args.others.is_empty() {
        let acquire = request.acquire_all(&client, &args.others).guards();
        let granted = progress_line::with_progress(&client, request, args.others.len(), acquire).await;
        return granted
            .map(HeldLocks::from)
            .map_err(|error| failure(error).about_several(namespace));
    }
    let granted = progress_line::with_progress(&client, request, 0, request.acquire(&client)).await;
    granted
        .map(HeldLocks::from)
        .map_err(|error| failure(error).about(&args.request.lock))
}

/// Locks of several namespaces, which may be in several stores.
#[derive(Debug, thiserror::Error)]
#[error("{first} and {other} are in different namespaces, so they cannot be acquired together")]
struct TwoNamespaces {
    first: LockName,
    other: LockName,
}

/// A lock that is named twice: it cannot be held twice.
#[derive(Debug, thiserror::Error)]
#[error("{lock} is named twice")]
struct SameLockTwice {
    lock: LockName,
}

impl Lock {
    /// All locks, in the order in which they were named.
    fn locks(&self) -> impl Iterator<Item = &LockName> {
        [&self.request.lock].into_iter().chain(&self.others)
    }

    /// A command to run under this lock.
    pub fn of(request: LockRequest, grace: Duration, server: Server, command: Vec<OsString>) -> Self {
        Self {
            request,
            others: Vec::new(),
            grace,
            at_least: None,
            server,
            command,
        }
    }

    fn lost(&self, loss: Loss, consequence: &'static str) -> Failure {
        let lock = self.locks().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Failure::coded(
            exit::LOST,
            Lost {
                lock,
                loss,
                consequence,
            },
        )
    }

    /// The error for a release without a response.
    fn unanswered(&self) -> Error {
        Error::Unreachable {
            addresses: self.server.text(),
            problem: "no response before the end of the lease".to_owned(),
        }
    }

    /// The environment variables of the command.
    fn environment(&self, held: &HeldLocks) -> impl Iterator<Item = (&'static str, OsString)> {
        held.environment().into_iter().chain(self.server.environment())
    }
}

/// The time limits for ending a group.
#[derive(Debug, Clone, Copy)]
struct EndLimits {
    /// The time between TERM and KILL.
    grace: Duration,
    /// The time between KILL and the end of the lease.
    margin: Duration,
}

impl EndLimits {
    fn of(held: &HeldLocks, grace: Duration) -> Self {
        let max_grace = held.ttl() / MAX_FRACTION;
        Self {
            grace: grace.min(max_grace),
            margin: KILL_MARGIN.min(max_grace / MAX_FRACTION),
        }
    }
}

/// Runs the command while the lease is held. None of its processes remains.
async fn run_child(guard: &mut HeldLocks, args: &Lock, signals: &mut Signals) -> Result<Ended, Failure> {
    let limits = EndLimits::of(guard, args.grace);
    let before = limits.grace + limits.margin;
    if guard.remaining() <= before {
        return Ok(Ended::Lost(Loss::Unrenewed));
    }
    let mut end = guard.end();
    let mut watchdog = Watchdog::start().map_err(Failure::runtime)?;
    let terminal = Terminal::open();
    let mut child = Child::start(&args.command, args.environment(guard))?;
    watchdog.set_deadline(child.group(), end.saturating_sub(limits.margin / 2));
    terminal.give_to(child.group());
    let ending = guard.ending(before);
    tokio::pin!(ending);
    let ended = loop {
        tokio::select! {
            biased;
            loss = &mut ending => break Ended::Lost(loss),
            event = child.next() => match event {
                ChildEvent::Ended(exit) => break Ended::Exited(exit),
                ChildEvent::Stopped(signal) => {
                    terminal.stopped(child.group(), signal, || guard.is_held());
                }
            },
            renewed = guard.renewed() => if let Some(renewed) = renewed {
                end = renewed;
                watchdog.set_deadline(child.group(), end.saturating_sub(limits.margin / 2));
            },
            signal = signals.next() => child.group().signal(signal),
        }
    };
    end_all(&mut child, end, limits).await;
    terminal.reclaim_from(child.group());
    watchdog.stop();
    Ok(ended)
}

/// Ends the remaining processes of the group: by TERM, and by KILL after the grace or before the lease ends.
async fn end_all(child: &mut Child, end: Duration, limits: EndLimits) {
    let group = child.group();
    let kill = end
        .saturating_sub(limits.margin)
        .min(clock::since_boot() + limits.grace);
    if child.has_ended() {
        return;
    }
    group.signal(Signal::SIGTERM);
    // A stopped process handles TERM only after CONT.
    group.signal(Signal::SIGCONT);
    while clock::since_boot() < kill {
        child.wait_for_event(POLL_INTERVAL).await;
        if child.has_ended() {
            return;
        }
    }
    group.signal(Signal::SIGKILL);
    let deadline = clock::since_boot() + KILL_WAIT;
    while !child.has_ended() && clock::since_boot() < deadline {
        child.wait_for_event(POLL_INTERVAL).await;
    }
}
