//! The lines of the log, between the threads that log and the one thread that writes.
//!
//! A reader of standard error that stands still would otherwise stop every thread that logs. The queue has a bound in
//! bytes: lines beyond it are dropped and counted. Lines of the audit are never dropped: an action reserves the place
//! of its line before it begins, and is refused without one. What `tracing-appender` offers bounds lines instead of
//! bytes, and reserves none.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::AUDIT;
use super::values::shortened_json;

/// How many bytes of lines may be queued, beside those of the audit.
const MAX_BYTES: usize = 4 << 20;
/// What a queued line takes beside its text.
const LINE_BYTES: usize = 64;
/// How many lines of the audit may be queued or reserved.
const MAX_AUDIT_LINES: usize = 1024;
/// The delay before a line of the audit that could not be written is written again.
const RETRY: Duration = Duration::from_secs(1);
/// The delay before a line is written to an output that had no room.
const BLOCKED: Duration = Duration::from_millis(50);

/// The queue of this process.
pub(super) static QUEUE: LogQueue = LogQueue::new();

#[derive(Debug)]
struct Line {
    text: Vec<u8>,
    is_audit: bool,
}

#[derive(Debug)]
struct Lines {
    queued: VecDeque<Line>,
    /// The bytes of the queued lines that are not of the audit.
    bytes: usize,
    audit_lines: usize,
    reserved: usize,
    is_writing: bool,
    /// How many lines were dropped since that was logged.
    dropped: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct LogQueue {
    lines: Mutex<Lines>,
    changed: Condvar,
    /// How many lines were dropped since [`Self::take_dropped`].
    dropped: AtomicU64,
    /// How many actions were refused since [`Self::take_refused`].
    refused: AtomicU64,
}

/// The reserved place of one audit line.
#[derive(Debug)]
pub struct AuditPlace(&'static LogQueue);

impl Drop for AuditPlace {
    fn drop(&mut self) {
        self.0.lines.lock().reserved -= 1;
    }
}

impl LogQueue {
    pub(super) const fn new() -> Self {
        Self {
            lines: Mutex::new(Lines {
                queued: VecDeque::new(),
                bytes: 0,
                audit_lines: 0,
                reserved: 0,
                is_writing: false,
                dropped: 0,
            }),
            changed: Condvar::new(),
            dropped: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Reserves the place of one line of the audit, which may be queued until the place is dropped.
    pub(super) fn reserve(&'static self) -> Option<AuditPlace> {
        let mut lines = self.lines.lock();
        if lines.audit_lines + lines.reserved >= MAX_AUDIT_LINES {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        lines.reserved += 1;
        Some(AuditPlace(self))
    }

    fn push(&self, text: Vec<u8>, is_audit: bool) {
        let mut lines = self.lines.lock();
        let bytes = text.len() + LINE_BYTES;
        if is_audit {
            lines.audit_lines += 1;
        } else if lines.bytes + bytes > MAX_BYTES {
            self.drop_line(&mut lines);
            return;
        } else {
            lines.bytes += bytes;
        }
        lines.queued.push_back(Line { text, is_audit });
        self.changed.notify_all();
    }

    fn drop_line(&self, lines: &mut Lines) {
        lines.dropped += 1;
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// How many lines were dropped since the last call.
    pub(super) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }

    /// How many actions had no place for their audit line since the last call.
    pub(super) fn take_refused(&self) -> u64 {
        self.refused.swap(0, Ordering::Relaxed)
    }

    /// Writes each line that is queued from now on, in a thread of its own.
    ///
    /// # Errors
    /// If the system has no thread.
    pub(super) fn write_to(&'static self, mut output: impl Write + Send + 'static) -> io::Result<()> {
        let write = move || {
            let mut is_cut = false;
            loop {
                self.write_next(&mut output, &mut is_cut);
                self.report_dropped();
            }
        };
        thread::Builder::new().name("log".into()).spawn(write).map(drop)
    }

    /// Waits for a line and writes it, behind one that was maybe cut off. It counts until it is written.
    fn write_next(&self, output: &mut impl Write, is_cut: &mut bool) {
        let mut lines = self.lines.lock();
        let line = loop {
            if let Some(line) = lines.queued.pop_front() {
                break line;
            }
            self.changed.wait(&mut lines);
        };
        lines.is_writing = true;
        let written = MutexGuard::unlocked(&mut lines, || write_line(output, &line, is_cut));
        lines.is_writing = false;
        if line.is_audit {
            lines.audit_lines -= 1;
        } else {
            lines.bytes -= line.text.len() + LINE_BYTES;
        }
        if written.is_err() {
            self.drop_line(&mut lines);
        }
        self.changed.notify_all();
    }

    /// Logs how many lines were dropped, once most of the queue was written: that line is not dropped itself.
    fn report_dropped(&self) {
        let mut lines = self.lines.lock();
        if lines.dropped > 0 && lines.bytes < MAX_BYTES / 2 {
            let dropped = std::mem::take(&mut lines.dropped);
            drop(lines);
            tracing::error!(
                dropped,
                "lines of the log were dropped, because standard error was not read or could not be written"
            );
        }
    }

    /// Waits until all lines are written, at most so long. Returns whether they are.
    pub(super) fn flush(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let mut lines = self.lines.lock();
        while lines.is_writing || !lines.queued.is_empty() {
            if self.changed.wait_until(&mut lines, deadline).timed_out() {
                return false;
            }
        }
        true
    }
}

/// Writes a line, behind a line end if the one before was cut off. One of the audit goes on after an error where it was
/// stopped, for example once a full disk has space.
fn write_line(output: &mut impl Write, line: &Line, is_cut: &mut bool) -> io::Result<()> {
    let begin: &[u8] = if *is_cut { b"\n" } else { b"" };
    let text = [begin, &line.text].concat();
    let mut left = text.as_slice();
    while !left.is_empty() {
        match output.write(left) {
            Ok(written) if written > 0 => left = &left[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process may have set the file so.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(BLOCKED),
            _ if line.is_audit => thread::sleep(RETRY),
            failed => {
                *is_cut |= left.len() < text.len();
                return failed.and(Err(io::ErrorKind::WriteZero.into()));
            }
        }
    }
    *is_cut = false;
    Ok(())
}

/// Queues the lines of the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueWriter {
    pub(super) queue: &'static LogQueue,
    pub(super) is_json: bool,
}

impl<'a> MakeWriter<'a> for QueueWriter {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        LineWriter {
            to: *self,
            is_audit: false,
        }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LineWriter {
        LineWriter {
            to: *self,
            is_audit: metadata.target() == AUDIT,
        }
    }
}

/// Queues one line, which is written to it as a whole.
#[derive(Debug)]
pub(super) struct LineWriter {
    to: QueueWriter,
    is_audit: bool,
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = match self.to.is_json {
            true => shortened_json(line),
            false => line.to_vec(),
        };
        self.to.queue.push(text, self.is_audit);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
