//! Acquire and Release by many callers, each with a lock of its own, over one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fencepost::api::proto::AcquireRequest;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::client::{self, Locks};
use crate::options::Plan;
use crate::report::{Bound, Compared, Report, Row};
use crate::stats::{median, ratios};
use crate::{Failure, Subject, Subjects};

/// How many callers there are.
pub const CALLERS: usize = 64;

/// What came of loading one subject for a while.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    /// How many pairs or calls were finished.
    pub finished: usize,
    /// In what time.
    pub elapsed: Duration,
    /// With how much of the server's CPU time.
    pub cpu: Duration,
}

impl Slice {
    /// How many per second.
    pub fn rate(&self) -> f64 {
        self.finished as f64 / self.elapsed.as_secs_f64()
    }
}

/// The median rate of some slices.
pub fn rate(slices: &[Slice]) -> f64 {
    median(slices.iter().map(Slice::rate).collect())
}

/// The ratios of two subjects' rates, round by round.
pub fn rate_ratios(these: &[Slice], those: &[Slice]) -> Vec<f64> {
    ratios(these.iter().map(Slice::rate), those.iter().map(Slice::rate))
}

/// The server's CPU time for each pair or call, in microseconds.
pub fn cpu_us(slices: &[Slice]) -> f64 {
    let cpu: Duration = slices.iter().map(|slice| slice.cpu).sum();
    let finished: usize = slices.iter().map(|slice| slice.finished).sum();
    cpu.as_secs_f64() * 1e6 / finished as f64
}

/// The pairs of all three subjects, turn by turn.
pub async fn measure(plan: &Plan, subjects: &Subjects, report: &mut Report) -> Result<(), Failure> {
    let all = [&subjects.echo, &subjects.memory, &subjects.durable];
    let mut slices = [vec![], vec![], vec![]];
    for subject in all {
        load(subject, plan.slice).await?;
    }
    for round in 0..plan.rounds {
        for turn in 0..all.len() {
            // Each comes first as often as last, so that a drift of the machine favours none.
            let which = if round % 2 == 0 { turn } else { all.len() - 1 - turn };
            slices[which].push(load(all[which], plan.slice).await?);
        }
    }
    let [echo, memory, durable] = slices;
    let row = |what, slices: &[Slice]| Row::new(what, rate(slices), "pairs/s").cpu(cpu_us(slices));
    let share =
        |slices: &[Slice], least| Compared::new("of echo pairs", rate_ratios(slices, &echo), Bound::AtLeast(least));
    report.add(row("echo, 64 callers", &echo));
    report.add(row("memory, 64 callers", &memory).compared(share(&memory, 0.85)));
    report.add(row("durable, 64 callers", &durable).compared(share(&durable, 0.3)));
    Ok(())
}

/// One subject's pairs for a while.
pub async fn load(subject: &Subject, time: Duration) -> Result<Slice, Failure> {
    let asks =
        (0..CALLERS).map(|caller| client::ask(subject.namespace, format!("pair-{caller:02}"), "bench", Duration::ZERO));
    load_with(subject, asks, time).await
}

/// Lets each of `asks` be asked again and again by a caller of its own.
pub async fn load_with(
    subject: &Subject,
    asks: impl Iterator<Item = AcquireRequest>,
    time: Duration,
) -> Result<Slice, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let (cpu, start) = (subject.process.cpu()?, Instant::now());
    let mut callers: JoinSet<_> = asks
        .map(|ask| repeat(subject.locks.clone(), ask, Arc::clone(&stop)))
        .collect();
    sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    let mut finished = 0;
    while let Some(caller) = callers.join_next().await {
        finished += caller??;
    }
    Ok(Slice {
        finished,
        elapsed: start.elapsed(),
        cpu: subject.process.cpu()? - cpu,
    })
}

async fn repeat(mut locks: Locks, ask: AcquireRequest, stop: Arc<AtomicBool>) -> Result<usize, tonic::Status> {
    let mut finished = 0;
    while !stop.load(Ordering::Relaxed) {
        client::pair(&mut locks, ask.clone()).await?;
        finished += 1;
    }
    Ok(finished)
}
