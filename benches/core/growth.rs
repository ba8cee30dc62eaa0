//! What many leases and many waiters cost the server: memory for each, the time of a pair beside them, and the time
//! until a server with a file serves them again.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::Status;

use crate::client::{self, Locks};
use crate::options::Plan;
use crate::process::Process;
use crate::report::{Bound, Compared, Report, Row};
use crate::stats::{median, millis, quantile, ratios};
use crate::{DURABLE, Failure, MEMORY, Subject};

/// How many callers take the locks that are then held.
const CALLERS: usize = 256;
/// Over how many connections the waiters wait.
const CONNECTIONS: usize = 10;
/// How many pairs warm a server up before its memory is read.
const WARM_UP: usize = 200;
/// Longer than anybody waits here.
const WAIT: Duration = Duration::from_secs(3600);
/// How long a crowd may settle before its memory is read.
const SETTLE: Duration = Duration::from_secs(2);
/// How many begin to wait together.
const GROUP: usize = 500;
/// How often the queues are looked at while they fill.
const LOOK: Duration = Duration::from_millis(5);

/// The most that is accepted: bytes of memory, and the time of a pair beside that at an empty server.
const LEASE_KIB: f64 = 1.0;
const WAITER_KIB: f64 = 8.0;
const SLOWER: f64 = 1.5;

/// A server without a crowd and one with it, in the same minutes.
struct Pair {
    empty: Subject,
    full: Subject,
    /// What the full one had resident before its crowd came.
    before: f64,
}

impl Pair {
    async fn start(folder: &Path, program: &Path, namespace: &'static str, case: &str) -> Result<Self, Failure> {
        let empty = serve(folder, program, namespace, &format!("{case}-empty")).await?;
        let full = serve(folder, program, namespace, &format!("{case}-full")).await?;
        for subject in [&empty, &full] {
            for _ in 0..WARM_UP {
                lone(subject).await?;
            }
        }
        let before = full.process.resident_kib()?;
        Ok(Self { empty, full, before })
    }

    /// KiB for each of so many.
    async fn kib(&self, of: usize) -> Result<f64, Failure> {
        sleep(SETTLE).await;
        Ok((self.full.process.resident_kib()? - self.before) / of as f64)
    }

    /// Reports memory and the time of a pair.
    async fn report(
        &self,
        plan: &Plan,
        [memory, pair]: [&'static str; 2],
        (crowd, kib): (usize, f64),
        report: &mut Report,
    ) -> Result<(), Failure> {
        let each = self.kib(crowd).await?;
        report.add(Row::new(memory, each, "KiB").compared(Compared::new("KiB", vec![each], Bound::AtMost(kib))));
        let (mut empty, mut full) = (vec![], vec![]);
        for _ in 0..plan.samples {
            empty.push(millis(lone(&self.empty).await?));
            full.push(millis(lone(&self.full).await?));
        }
        // Medians of ten groups, turn by turn: one pair of calls says little.
        let medians = |times: &[f64]| -> Vec<f64> {
            let groups = times.chunks(times.len().div_ceil(10));
            groups.map(|group| median(group.to_vec())).collect()
        };
        let slower = ratios(medians(&full).into_iter(), medians(&empty).into_iter());
        let row = Row::new(pair, median(full.clone()), "ms").p99(quantile(full, 0.99));
        report.add(row.compared(Compared::new("times the empty", slower, Bound::AtMost(SLOWER))));
        Ok(())
    }
}

async fn serve(folder: &Path, program: &Path, namespace: &'static str, name: &str) -> Result<Subject, Failure> {
    let path = if namespace == MEMORY {
        ":memory:".to_owned()
    } else {
        format!("{name}.redb")
    };
    let config = format!(
        "[server]\nacquire_limit = 300000\nconnection_call_limit = 300000\nidentity_share = 100\npeer_share = 100\n\
         [namespaces.{namespace}]\nttl_default = \"1day\"\nqueue_limit = 300000\n\
         [namespaces.{namespace}.embedded]\npath = {path:?}\nclaim_limit = 2000000\n"
    );
    let process = Process::configured(folder, program, name, &config)?;
    Subject::connect(process, namespace).await
}

/// The time of an Acquire and its Release by a lone caller.
async fn lone(subject: &Subject) -> Result<Duration, Failure> {
    let mut locks = subject.locks.clone();
    let ask = client::ask(subject.namespace, "a lock of its own", "bench", Duration::ZERO);
    let start = Instant::now();
    client::pair(&mut locks, ask).await?;
    Ok(start.elapsed())
}

/// Takes so many locks and keeps them.
async fn hold(subject: &Subject, leases: usize) -> Result<(), Failure> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (mut locks, namespace) = (subject.locks.clone(), subject.namespace);
        callers.spawn(async move {
            for number in (caller..leases).step_by(CALLERS) {
                let ask = client::ask(namespace, held(number), "a holder", Duration::ZERO);
                client::acquire(&mut locks, ask).await?;
            }
            Ok::<_, Status>(())
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller??;
    }
    Ok(())
}

fn held(number: usize) -> String {
    format!("orders/{number:07}")
}

/// Lets so many wait for locks that are held, spread evenly; they end with the returned set.
async fn wait(subject: &Subject, waiters: usize, locks: usize) -> Result<JoinSet<Status>, Failure> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(client::connect(subject.process.address()).await?);
    }
    let mut waiting = JoinSet::new();
    for waiter in 0..waiters {
        let ask = client::ask(subject.namespace, held(waiter % locks), "a waiter", WAIT);
        let mut client: Locks = connections[waiter % CONNECTIONS].clone();
        waiting.spawn(async move {
            let ended = client::acquire(&mut client, ask).await;
            ended
                .err()
                .unwrap_or_else(|| Status::internal("a lock was granted twice"))
        });
        if waiter % GROUP == 0 {
            // A faster client would only fill the sockets.
            until_waiting(subject, waiter % locks, waiter / locks + 1, &mut waiting).await?;
        }
    }
    for lock in 0..locks {
        let expected = waiters / locks + usize::from(lock < waiters % locks);
        until_waiting(subject, lock, expected, &mut waiting).await?;
    }
    Ok(waiting)
}

async fn until_waiting(
    subject: &Subject,
    lock: usize,
    expected: usize,
    waiting: &mut JoinSet<Status>,
) -> Result<(), Failure> {
    let (mut client, lock) = (subject.locks.clone(), held(lock));
    loop {
        let seen = client::inspect(&mut client, subject.namespace, &lock).await?;
        if seen.waiter_count as usize >= expected {
            return Ok(());
        }
        if let Some(ended) = waiting.try_join_next() {
            return Err(ended?.into());
        }
        sleep(LOOK).await;
    }
}

/// Measures servers with many leases.
pub async fn leases(plan: &Plan, folder: &Path, program: &Path, report: &mut Report) -> Result<(), Failure> {
    leases_in_memory(plan, folder, program, report).await?;
    durable_leases(plan, folder, program, report).await
}

/// Measures servers with many waiters.
pub async fn waiters(plan: &Plan, folder: &Path, program: &Path, report: &mut Report) -> Result<(), Failure> {
    let rows = ["a waiter, 10 on each lock", "  a pair beside them"];
    waiters_for(plan, (folder, program), ("spread", plan.locks), rows, report).await?;
    let rows = ["a waiter, all on one lock", "  a pair beside them"];
    waiters_for(plan, (folder, program), ("one", 1), rows, report).await
}

async fn leases_in_memory(plan: &Plan, folder: &Path, program: &Path, report: &mut Report) -> Result<(), Failure> {
    let pair = Pair::start(folder, program, MEMORY, "memory-leases").await?;
    hold(&pair.full, plan.leases).await?;
    let rows = ["a held lease in memory", "  a pair beside them"];
    pair.report(plan, rows, (plan.leases, LEASE_KIB), report).await
}

async fn durable_leases(plan: &Plan, folder: &Path, program: &Path, report: &mut Report) -> Result<(), Failure> {
    let pair = Pair::start(folder, program, DURABLE, "file-leases").await?;
    hold(&pair.full, plan.leases).await?;
    let rows = ["a held lease in a file", "  a pair beside them"];
    pair.report(plan, rows, (plan.leases, LEASE_KIB), report).await?;
    drop(pair);
    let started = Instant::now();
    let again = serve(folder, program, DURABLE, "file-leases-full").await?;
    lone(&again).await?;
    let took = started.elapsed().as_secs_f64();
    report.add(Row::new("  until a new server serves them", took, "s"));
    let mut locks = again.locks.clone();
    let last = client::inspect(&mut locks, DURABLE, &held(plan.leases - 1)).await?;
    if last.holder_count != 1 {
        return Err("a lease was lost over the restart".into());
    }
    Ok(())
}

async fn waiters_for(
    plan: &Plan,
    (folder, program): (&Path, &Path),
    (case, locks): (&str, usize),
    rows: [&'static str; 2],
    report: &mut Report,
) -> Result<(), Failure> {
    let mut pair = Pair::start(folder, program, MEMORY, &format!("waiters-{case}")).await?;
    hold(&pair.full, locks).await?;
    pair.before = pair.full.process.resident_kib()?;
    let waiting = wait(&pair.full, plan.waiters, locks).await?;
    pair.report(plan, rows, (plan.waiters, WAITER_KIB), report).await?;
    drop(waiting);
    Ok(())
}
