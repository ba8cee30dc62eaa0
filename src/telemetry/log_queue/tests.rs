use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// An output that takes a write for each permit, and fails if the permit says so.
struct Gate {
    permits: Receiver<bool>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Write for Gate {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !self.permits.recv().unwrap_or(true) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.written.lock().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn gated() -> (&'static LogQueue, Sender<bool>, Arc<Mutex<Vec<u8>>>) {
    let (queue, (open, permits)) = (&*Box::leak(Box::new(LogQueue::new())), channel());
    let written = Arc::<Mutex<Vec<u8>>>::default();
    let gate = Gate {
        permits,
        written: Arc::clone(&written),
    };
    queue.write_to(gate).expect("a thread");
    (queue, open, written)
}

// G186
#[test]
fn lines_beyond_the_bound_are_dropped_and_counted_and_nobody_waits() {
    let (queue, open, written) = gated();
    let line = vec![b'x'; 1024];
    for _ in 0..10_000 {
        queue.push(line.clone(), false);
    }
    let kept = queue.lines.lock().queued.len();
    assert!((3_000..4_096).contains(&kept), "{kept}");
    let dropped = queue.take_dropped();
    assert!((5_900..7_000).contains(&dropped), "{dropped}");
    assert!(!queue.flush(Duration::from_millis(10)), "nothing is written yet");
    drop(open);
    assert!(queue.flush(LONG));
    assert_eq!(
        written.lock().len(),
        (10_000 - usize::try_from(dropped).unwrap()) * 1024
    );
    queue.push(line, false);
    assert!(queue.flush(LONG));
    assert_eq!(queue.take_dropped(), 0, "there is room again");
}

#[test]
fn a_flush_waits_for_the_line_that_is_being_written() {
    let (queue, open, written) = gated();
    queue.push(b"last\n".to_vec(), false);
    while !queue.lines.lock().queued.is_empty() {
        thread::yield_now();
    }
    assert!(!queue.flush(Duration::from_millis(10)));
    open.send(true).expect("the thread writes");
    assert!(queue.flush(LONG));
    assert_eq!(*written.lock(), b"last\n");
}

/// The log of this thread, in a queue that nobody writes.
fn logged(queue: &'static LogQueue, log: impl FnOnce()) {
    let writer = QueueWriter { queue, is_json: false };
    let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
    tracing::subscriber::with_default(subscriber, log);
}

// G186
#[test]
fn dropped_lines_are_reported_once_when_there_is_room_for_that() {
    let queue = &*Box::leak(Box::new(LogQueue::new()));
    for _ in 0..5_000 {
        queue.push(vec![b'x'; 1024], false);
    }
    let queued = || queue.lines.lock().queued.len();
    let full = queued();
    logged(queue, || queue.report_dropped());
    assert_eq!(queued(), full, "there is no room");
    assert_ne!(queue.lines.lock().dropped, 0, "it is reported later");
    for _ in 0..full / 2 + 1 {
        queue.write_next(&mut io::sink(), &mut false);
    }
    let half = queued();
    logged(queue, || {
        queue.report_dropped();
        queue.report_dropped();
    });
    assert_eq!(queued(), half + 1);
    let last = queue.lines.lock().queued.pop_back().expect("a line");
    let text = String::from_utf8(last.text).expect("UTF-8");
    assert!(text.contains("lines of the log were dropped"), "{text}");
}

// G187
#[test]
fn a_line_is_of_the_audit_by_its_target() {
    let queue = &*Box::leak(Box::new(LogQueue::new()));
    logged(queue, || {
        tracing::info!(target: AUDIT, "an action");
        tracing::info!("a line");
    });
    let lines = queue.lines.lock();
    assert_eq!((lines.queued.len(), lines.audit_lines), (2, 1));
    assert!(lines.queued[0].is_audit && !lines.queued[1].is_audit);
}

// G187
#[test]
fn a_line_of_the_audit_has_a_reserved_place_or_there_is_none() {
    let (queue, open, written) = gated();
    for _ in 0..10_000 {
        queue.push(vec![b'x'; 1024], false);
    }
    let places: Vec<_> = (0..MAX_AUDIT_LINES)
        .map(|_| queue.reserve().expect("a place"))
        .collect();
    assert!(queue.reserve().is_none());
    assert_eq!(queue.take_refused(), 1);
    for place in places {
        queue.push(b"audit\n".to_vec(), true);
        drop(place);
    }
    assert!(
        queue.reserve().is_none(),
        "a queued line takes its place until it is written"
    );
    drop(open);
    assert!(queue.flush(LONG));
    let written = String::from_utf8(written.lock().clone()).expect("UTF-8");
    assert_eq!(written.matches("audit\n").count(), MAX_AUDIT_LINES);
    assert!(queue.reserve().is_some());
}

// G187
#[test]
fn a_line_of_the_audit_that_cannot_be_written_is_written_later() {
    let (queue, open, written) = gated();
    queue.push(b"lost\n".to_vec(), false);
    queue.push(b"audit\n".to_vec(), true);
    for permit in [false, false, true] {
        open.send(permit).expect("the thread writes");
    }
    assert!(queue.flush(LONG));
    assert_eq!(*written.lock(), b"audit\n");
    assert_eq!(queue.take_dropped(), 1);
}

/// An output that takes so many bytes with each write, or fails.
struct Parts(VecDeque<Result<usize, io::ErrorKind>>, Vec<u8>);

impl Write for Parts {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let bytes = self.0.pop_front().unwrap_or(Ok(line.len()))?.min(line.len());
        self.1.extend_from_slice(&line[..bytes]);
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// G187
#[test]
fn what_was_written_of_a_line_spoils_no_line_of_the_audit() {
    use io::ErrorKind::{StorageFull, WouldBlock};
    let queue = LogQueue::new();
    let (full, blocked) = (Err(StorageFull), Err(WouldBlock));
    let outcomes = [Ok(2), full, Ok(4), full, Ok(0), blocked, Ok(1), Ok(100), Ok(2), blocked];
    let (mut output, mut is_cut) = (Parts(outcomes.into(), Vec::new()), false);
    for (line, is_audit) in [("lost\n", false), ("audit\n", true), ("last\n", false)] {
        queue.push(line.into(), is_audit);
        queue.write_next(&mut output, &mut is_cut);
    }
    assert_eq!(String::from_utf8(output.1).as_deref(), Ok("lo\naudit\nlast\n"));
    assert_eq!(queue.take_dropped(), 1);
}
