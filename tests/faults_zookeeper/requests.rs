//! The multis among what a replica sends to ZooKeeper.

/// The code of a multi among requests.
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

/// Whether a part of the requests has a multi with an operation of this kind on a path of which `is_it` is true.
pub fn has(part: &[u8], kind: Kind, is_it: impl Fn(&str) -> bool) -> bool {
    let of_multi = |ops: Vec<Operation>| ops.iter().any(|op| op.kind == kind && is_it(&op.path));
    multis(part).into_iter().any(of_multi)
}

/// The operations of each multi that is complete in this part.
fn multis(part: &[u8]) -> Vec<Vec<Operation>> {
    let mut found = Vec::new();
    let mut rest = Bytes(part);
    while let Some(frame) = rest.buffer() {
        let mut frame = Bytes(frame);
        let code = frame.int().and_then(|_number| frame.int());
        if code == Some(MULTI) {
            found.extend(operations(&mut frame));
        }
    }
    found
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
