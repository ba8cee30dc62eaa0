//! What a replica sends to ZooKeeper.

/// The codes of requests.
pub const GET: i32 = 4;
pub const CHILDREN: i32 = 12;
const MULTI: i32 = 14;

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Create,
    Delete,
    Set,
    /// Of a version alone.
    Check,
}

/// An operation of a multi.
#[derive(Debug)]
pub struct Operation {
    pub kind: Kind,
    pub path: String,
}

/// A request.
#[derive(Debug)]
pub struct Request {
    /// The number by which it is answered.
    pub number: i32,
    pub code: i32,
    /// The path that is read.
    pub path: String,
    /// Those of a multi.
    pub operations: Option<Vec<Operation>>,
}

/// Whether a part of the requests has a multi with an operation of this kind on a path of which `is_it` is true.
pub fn has(part: &[u8], kind: Kind, is_it: impl Fn(&str) -> bool) -> bool {
    let of_multi = |ops: Vec<Operation>| ops.iter().any(|op| op.kind == kind && is_it(&op.path));
    multis(part).into_iter().any(of_multi)
}

/// The operations of each multi that is complete in this part.
fn multis(part: &[u8]) -> Vec<Vec<Operation>> {
    let (requests, _) = requests(part);
    requests.into_iter().filter_map(|request| request.operations).collect()
}

/// The requests that are complete in this part, and what is left of it.
pub fn requests(part: &[u8]) -> (Vec<Request>, &[u8]) {
    let mut found = Vec::new();
    let rest = frames(part, |mut frame| {
        if let (Some(number), Some(code)) = (frame.int(), frame.int()) {
            let operations = (code == MULTI).then(|| operations(&mut frame)).flatten();
            let path = frame.buffer().unwrap_or_default();
            found.push(Request {
                number,
                code,
                path: String::from_utf8_lossy(path).into_owned(),
                operations,
            });
        }
    });
    (found, rest)
}

/// What ZooKeeper sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// What a watch reports.
    Event,
    /// The answer to the request of this number, and whether it begins as that to a multi that was refused.
    To(i32, bool),
}

/// The answers that are complete in this part, and what is left of it.
pub fn answers(part: &[u8]) -> (Vec<Answer>, &[u8]) {
    const EVENT: i32 = -1;
    let mut found = Vec::new();
    let rest = frames(part, |mut frame| {
        let number = frame.int();
        let (_zxid, _error) = (frame.take(8), frame.int());
        let is_refused = frame.int() == Some(-1) && frame.take(1) == Some(&[0]);
        found.extend(number.map(|number| match number {
            EVENT => Answer::Event,
            number => Answer::To(number, is_refused),
        }));
    });
    (found, rest)
}

/// Reads each whole frame of this part, and returns what is left.
fn frames(part: &[u8], mut read: impl FnMut(Bytes<'_>)) -> &[u8] {
    let mut rest = Bytes(part);
    loop {
        let before = rest.0;
        match rest.buffer() {
            Some(frame) => read(Bytes(frame)),
            None => return before,
        }
    }
}

fn operations(frame: &mut Bytes<'_>) -> Option<Vec<Operation>> {
    let mut found = Vec::new();
    loop {
        let (code, is_end, _error) = (frame.int()?, frame.take(1)?[0] == 1, frame.int()?);
        if is_end {
            return Some(found);
        }
        let path = String::from_utf8(frame.buffer()?.to_vec()).ok()?;
        let kind = match code {
            1 => {
                frame.buffer()?;
                for _ in 0..frame.int()? {
                    let _rights = frame.int()?;
                    frame.buffer()?;
                    frame.buffer()?;
                }
                Kind::Create
            }
            2 => Kind::Delete,
            5 => {
                frame.buffer()?;
                Kind::Set
            }
            13 => Kind::Check,
            _ => return None,
        };
        let _flags_or_version = frame.int()?;
        found.push(Operation { kind, path });
    }
}

/// What is left to read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn buffer(&mut self) -> Option<&'a [u8]> {
        let length = self.int()?;
        self.take(usize::try_from(length).ok()?)
    }
}
