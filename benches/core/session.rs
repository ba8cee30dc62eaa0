//! Acquire and Release on one session with many commands in flight, beside the same by calls over one connection, and
//! beside an echo of sessions that answers all commands of a message in one message.

use std::time::{Duration, Instant};

use fencepost::api::proto::session_command::{Acquire, Command};
use fencepost::api::proto::session_event::command_result::Outcome;
use fencepost::api::proto::session_event::{CommandResult, Event};
use fencepost::api::proto::{ReleaseRequest, SessionCommand, SessionEvent, SessionRequest, SessionResponse};
use futures::channel::mpsc::{UnboundedSender, unbounded};
use tonic::Streaming;

use crate::client;
use crate::options::Plan;
use crate::pairs::{self, CALLERS, Slice, cpu_us, rate, rate_ratios};
use crate::report::{Bound, Compared, Report, Row};
use crate::{Failure, Subject, Subjects};

/// How many times as fast a session has to be as calls over one connection.
const OF_CALLS: f64 = 5.0;
/// Which part of an echo of sessions it has to reach.
const OF_ECHO: f64 = 0.6;

/// Pairs by calls, on a session, and on an echo of sessions, turn by turn.
pub async fn measure(plan: &Plan, subjects: &Subjects, report: &mut Report) -> Result<(), Failure> {
    let (mut calls, mut echo, mut memory, mut durable) = (vec![], vec![], vec![], vec![]);
    for subject in [&subjects.echo, &subjects.memory, &subjects.durable] {
        load(subject, plan.slice).await?;
    }
    for round in 0..plan.rounds {
        let first = round % 2 == 0;
        if first {
            calls.push(pairs::load(&subjects.memory, plan.slice).await?);
            echo.push(load(&subjects.echo, plan.slice).await?);
        }
        memory.push(load(&subjects.memory, plan.slice).await?);
        durable.push(load(&subjects.durable, plan.slice).await?);
        if !first {
            echo.push(load(&subjects.echo, plan.slice).await?);
            calls.push(pairs::load(&subjects.memory, plan.slice).await?);
        }
    }
    let row = |what, slices: &[Slice]| Row::new(what, rate(slices), "pairs/s").cpu(cpu_us(slices));
    let of_calls = Compared::new(
        "of pairs by calls",
        rate_ratios(&memory, &calls),
        Bound::AtLeast(OF_CALLS),
    );
    let of_echo = Compared::new("of the echo", rate_ratios(&memory, &echo), Bound::AtLeast(OF_ECHO));
    report.add(row("calls in memory, 64 callers", &calls));
    report.add(row("echo of a session, 64 in flight", &echo));
    report.add(row("session in memory, 64 in flight", &memory).compared(of_calls));
    report.add(row("session in memory, 64 in flight", &memory).compared(of_echo));
    report.add(row("session with a file, 64 in flight", &durable));
    Ok(())
}

/// One subject's pairs on one session for a while.
async fn load(subject: &Subject, time: Duration) -> Result<Slice, Failure> {
    let mut session = Session::open(subject).await?;
    let (cpu, start) = (subject.process.cpu()?, Instant::now());
    let finished = session.run(start + time).await?;
    Ok(Slice {
        finished,
        elapsed: start.elapsed(),
        cpu: subject.process.cpu()? - cpu,
    })
}

/// A session on which each of its callers acquires and releases a lock of its own, again and again.
struct Session {
    namespace: &'static str,
    commands: UnboundedSender<SessionRequest>,
    events: Streaming<SessionResponse>,
}

impl Session {
    async fn open(subject: &Subject) -> Result<Self, Failure> {
        let (commands, sent) = unbounded();
        let events = subject.locks.clone().session(sent).await?.into_inner();
        Ok(Self {
            namespace: subject.namespace,
            commands,
            events,
        })
    }

    fn send(&self, commands: Vec<SessionCommand>) -> Result<(), Failure> {
        Ok(self.commands.unbounded_send(SessionRequest { commands })?)
    }

    /// Makes pairs until this time, and returns how many. What arrives in one message is answered in one message.
    async fn run(&mut self, until: Instant) -> Result<usize, Failure> {
        self.send((0..CALLERS as u64).map(|caller| self.acquire(caller)).collect())?;
        let (mut finished, mut in_flight) = (0, CALLERS);
        while in_flight > 0 {
            let message = self.events.message().await?.ok_or("the session ended")?;
            let goes_on = Instant::now() < until;
            let mut commands = Vec::with_capacity(message.events.len());
            for SessionEvent { event } in message.events {
                let Some(Event::Result(CommandResult { id, outcome })) = event else {
                    continue;
                };
                in_flight -= 1;
                match outcome.ok_or("a result without an outcome")? {
                    Outcome::Acquire(answer) => {
                        let lease = answer.lease.ok_or("an answer without a lease")?;
                        commands.push(release(id, lease.lease_id));
                    }
                    Outcome::Release(_) => {
                        finished += 1;
                        if goes_on {
                            commands.push(self.acquire(id));
                        }
                    }
                    other => return Err(format!("{other:?}").into()),
                }
            }
            in_flight += commands.len();
            if !commands.is_empty() {
                self.send(commands)?;
            }
        }
        Ok(finished)
    }

    fn acquire(&self, caller: u64) -> SessionCommand {
        let name = format!("pair-{caller:02}");
        let request = Some(client::ask(self.namespace, name, "bench", Duration::ZERO));
        SessionCommand {
            id: caller,
            command: Some(Command::Acquire(Acquire { request, keep: false })),
        }
    }
}

fn release(caller: u64, lease_id: String) -> SessionCommand {
    SessionCommand {
        id: caller,
        command: Some(Command::Release(ReleaseRequest {
            lease_id,
            keep_for: None,
        })),
    }
}
