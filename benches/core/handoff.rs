//! One hot lock: its hand-offs, each from a Release sent to the next Lease received.

use std::iter::repeat_n;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::client::{self, Locks};
use crate::options::Plan;
use crate::pairs::{Slice, cpu_us, load_with, rate, rate_ratios};
use crate::report::{Bound, Compared, Report, Row};
use crate::stats::{millis, quantile};
use crate::{Failure, Subject, Subjects};

/// How many wait for the hot lock when its queue is drained.
const QUEUE: usize = 512;
/// How many take turns when its hand-offs are counted.
const TURNS: usize = 64;
/// The hot lock.
const HOT: &str = "hot";
/// Longer than any of them waits.
const WAIT: Duration = Duration::from_secs(60);
/// How often the queue is looked at while it fills.
const LOOK: Duration = Duration::from_millis(5);

/// A waiter's turn.
struct Turn {
    owner: String,
    token: u64,
    received: Instant,
    released: Instant,
}

/// What draining a queue gave.
#[derive(Default)]
struct Drained {
    hand_offs: Vec<f64>,
    out_of_order: usize,
    cpu: Duration,
}

/// Drains full queues in memory and in a file.
pub async fn drains(plan: &Plan, subjects: &Subjects, report: &mut Report) -> Result<(), Failure> {
    let mut all = [Drained::default(), Drained::default()];
    for _ in 0..plan.drains {
        for (subject, drained) in [&subjects.memory, &subjects.durable].into_iter().zip(&mut all) {
            drain(subject, drained).await?;
        }
    }
    let [memory, durable] = all;
    judge(["memory hand-off, 512 wait", "  served out of order"], memory, report);
    judge(["durable hand-off, 512 wait", "  served out of order"], durable, report);
    Ok(())
}

fn judge([what, order]: [&'static str; 2], drained: Drained, report: &mut Report) {
    let cpu = drained.cpu.as_secs_f64() * 1e6 / drained.hand_offs.len() as f64;
    let p99 = quantile(drained.hand_offs.clone(), 0.99);
    let row = Row::new(what, quantile(drained.hand_offs, 0.5), "ms").p99(p99).cpu(cpu);
    report.add(row.compared(Compared::new("ms p99", vec![p99], Bound::AtMost(5.0))));
    let count = drained.out_of_order as f64;
    let compared = Compared::new("of all", vec![count], Bound::AtMost(0.0));
    report.add(Row::new(order, count, "turns").compared(compared));
}

async fn drain(subject: &Subject, drained: &mut Drained) -> Result<(), Failure> {
    let mut locks = subject.locks.clone();
    let first = client::acquire(&mut locks, client::ask(subject.namespace, HOT, "first", WAIT)).await?;
    let asks = (0..QUEUE).map(|number| client::ask(subject.namespace, HOT, format!("waiter-{number}"), WAIT));
    let turns: JoinSet<_> = asks.map(|ask| turn(subject.locks.clone(), ask)).collect();
    let order = queue(&mut locks, subject.namespace).await?;
    let (cpu, released) = (subject.process.cpu()?, Instant::now());
    client::release(&mut locks, first).await?;
    let turns = served(turns).await?;
    drained.cpu += subject.process.cpu()? - cpu;
    let sent = std::iter::once(released).chain(turns.iter().map(|turn| turn.released));
    let gaps = turns
        .iter()
        .zip(sent)
        .map(|(turn, sent)| turn.received.saturating_duration_since(sent));
    drained.hand_offs.extend(gaps.map(millis));
    drained.out_of_order += turns
        .iter()
        .zip(&order)
        .filter(|(turn, owner)| turn.owner != **owner)
        .count();
    Ok(())
}

/// Waits for the lock, holds it for no time and gives it back.
async fn turn(mut locks: Locks, ask: fencepost::api::proto::AcquireRequest) -> Result<Turn, tonic::Status> {
    let lease = client::acquire(&mut locks, ask).await?;
    let received = Instant::now();
    let (owner, token) = (lease.owner.clone(), lease.fencing_token);
    let released = Instant::now();
    client::release(&mut locks, lease).await?;
    Ok(Turn {
        owner,
        token,
        received,
        released,
    })
}

/// All turns in the order in which the lock was granted.
async fn served(mut turns: JoinSet<Result<Turn, tonic::Status>>) -> Result<Vec<Turn>, Failure> {
    let mut served = Vec::new();
    while let Some(turn) = turns.join_next().await {
        served.push(turn??);
    }
    served.sort_by_key(|turn| turn.token);
    Ok(served)
}

/// The owners in the full queue, in its order.
async fn queue(locks: &mut Locks, namespace: &str) -> Result<Vec<String>, Failure> {
    loop {
        let lock = client::inspect(locks, namespace, HOT).await?;
        if lock.waiters.len() == QUEUE {
            return Ok(lock.waiters.into_iter().map(|waiter| waiter.owner).collect());
        }
        sleep(LOOK).await;
    }
}

/// Hand-offs per second among callers that take turns, against the echoes of a lone caller.
pub async fn rates(plan: &Plan, subjects: &mut Subjects, report: &mut Report) -> Result<(), Failure> {
    let (mut echo, mut memory, mut durable) = (vec![], vec![], vec![]);
    for _ in 0..plan.rounds {
        echo.push(echoes(&mut subjects.echo, plan.slice).await?);
        memory.push(turns(&subjects.memory, plan.slice).await?);
        durable.push(turns(&subjects.durable, plan.slice).await?);
    }
    let row = |what, slices: &[Slice], unit| Row::new(what, rate(slices), unit).cpu(cpu_us(slices));
    report.add(row("lone echo", &echo, "calls/s"));
    let compared = Compared::new("of lone echoes", rate_ratios(&memory, &echo), Bound::AtLeast(0.5));
    report.add(row("memory hand-offs, 64 take turns", &memory, "per s").compared(compared));
    report.add(row("durable hand-offs, 64 take turns", &durable, "per s"));
    Ok(())
}

async fn turns(subject: &Subject, time: Duration) -> Result<Slice, Failure> {
    let ask = client::ask(subject.namespace, HOT, "bench", WAIT);
    load_with(subject, repeat_n(ask, TURNS), time).await
}

/// One caller's echoes, one after another.
async fn echoes(subject: &mut Subject, time: Duration) -> Result<Slice, Failure> {
    let ask = client::ask(subject.namespace, HOT, "bench", WAIT);
    let (cpu, start) = (subject.process.cpu()?, Instant::now());
    let mut finished = 0;
    while start.elapsed() < time {
        client::acquire(&mut subject.locks, ask.clone()).await?;
        finished += 1;
    }
    Ok(Slice {
        finished,
        elapsed: start.elapsed(),
        cpu: subject.process.cpu()? - cpu,
    })
}
