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
