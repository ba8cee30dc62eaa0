//! One caller alone: what an Acquire costs beside the fsync that it needs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::options::Plan;
use crate::report::{Bound, Compared, Report, Row};
use crate::stats::{median, millis, quantile};
use crate::{Failure, Subject, Subjects, client};

/// What the bare loop writes before each fsync: one page, as a commit writes at least.
const PAGE: [u8; 4096] = [7; 4096];
/// How many pages the bare loop goes round in.
const PAGES: u64 = 64;

/// A file that is overwritten page by page, so that an fsync of it carries data and no growth.
struct Disk {
    file: File,
    page: u64,
}

impl Disk {
    fn new(folder: &Path) -> Result<Self, Failure> {
        let file = File::create(folder.join("fsync"))?;
        for page in 0..PAGES {
            file.write_all_at(&PAGE, page * PAGE.len() as u64)?;
        }
        file.sync_all()?;
        Ok(Self { file, page: 0 })
    }

    /// Writes a page and waits until it is durable.
    fn write(&mut self) -> Result<Duration, Failure> {
        let start = Instant::now();
        self.file.write_all_at(&PAGE, self.page * PAGE.len() as u64)?;
        self.file.sync_data()?;
        self.page = (self.page + 1) % PAGES;
        Ok(start.elapsed())
    }
}

/// Times an fsync, an echo and a durable Acquire after one another, again and again.
pub async fn measure(plan: &Plan, subjects: &mut Subjects, folder: &Path, report: &mut Report) -> Result<(), Failure> {
    let mut disk = Disk::new(folder)?;
    let [mut fsyncs, mut echoes, mut memory, mut durable] = [const { Vec::new() }; 4];
    for _ in 0..plan.samples {
        fsyncs.push(disk.write()?);
        echoes.push(acquire(&mut subjects.echo).await?);
        memory.push(acquire(&mut subjects.memory).await?);
        durable.push(acquire(&mut subjects.durable).await?);
    }
    for (what, times) in [
        ("a write and its fsync", &fsyncs),
        ("lone echo", &echoes),
        ("lone memory Acquire", &memory),
    ] {
        report.add(row(what, times));
    }
    let beyond = median(differences(&durable, &fsyncs));
    report.add(row("lone durable Acquire", &durable));
    report.add(Row::new("  beyond the fsync", beyond, "ms"));
    // The transport of a lone call takes longer than the bound itself on small machines, so it is
    // measured beside it and not counted: the bound is for what the lock costs.
    let transport = median(echoes.iter().copied().map(millis).collect());
    let rest = beyond - transport;
    let compared = Compared::new("ms", vec![rest], Bound::AtMost(0.3));
    report.add(Row::new("  beyond the fsync and the echo", rest, "ms").compared(compared));
    Ok(())
}

/// How much longer these took than those, pair by pair, in milliseconds.
fn differences(these: &[Duration], those: &[Duration]) -> Vec<f64> {
    let pairs = these.iter().zip(those);
    pairs.map(|(this, that)| millis(*this) - millis(*that)).collect()
}

fn row(what: &'static str, times: &[Duration]) -> Row {
    let ms: Vec<f64> = times.iter().copied().map(millis).collect();
    Row::new(what, quantile(ms.clone(), 0.5), "ms").p99(quantile(ms, 0.99))
}

/// The time of an Acquire; its lease is given back untimed.
async fn acquire(subject: &mut Subject) -> Result<Duration, Failure> {
    let ask = client::ask(subject.namespace, "pair-00", "bench", Duration::ZERO);
    let start = Instant::now();
    let lease = client::acquire(&mut subject.locks, ask).await?;
    let elapsed = start.elapsed();
    client::release(&mut subject.locks, lease).await?;
    Ok(elapsed)
}
