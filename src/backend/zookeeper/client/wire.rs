//! The encoding of ZooKeeper's protocol (jute): big-endian integers, and strings and buffers with their length.

use crate::backend::tree::store::{ANY, Done, Failure, NodeKind, Op, Reason, Stat, Version};

/// Opcodes of requests.
pub mod opcode {
    pub const CREATE: i32 = 1;
    pub const DELETE: i32 = 2;
    pub const GET_DATA: i32 = 4;
    pub const SET_DATA: i32 = 5;
    pub const SYNC: i32 = 9;
    pub const PING: i32 = 11;
    pub const GET_CHILDREN: i32 = 12;
    pub const CHECK: i32 = 13;
    pub const MULTI: i32 = 14;
    pub const REMOVE_WATCHES: i32 = 18;
    pub const AUTH: i32 = 100;
    pub const ADD_WATCH: i32 = 106;
    pub const CLOSE: i32 = -11;
}

/// Appends encoded values.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.0.push(value.into());
        self
    }

    pub fn buffer(&mut self, bytes: &[u8]) -> &mut Self {
        self.int(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        self.0.extend(bytes);
        self
    }

    pub fn string(&mut self, text: &str) -> &mut Self {
        self.buffer(text.as_bytes())
    }

    fn acl(&mut self, acl: &Acl) -> &mut Self {
        const ALL: i32 = 31;
        let (scheme, id) = match acl {
            Acl::Open => ("world", "anyone"),
            Acl::Creator => ("auth", ""),
        };
        self.int(1).int(ALL).string(scheme).string(id)
    }
}

/// Reads encoded values.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Failure> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(Failure::malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        self.take(N)?.try_into().map_err(|_| Failure::malformed())
    }

    pub fn int(&mut self) -> Result<i32, Failure> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub fn long(&mut self) -> Result<i64, Failure> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub fn bool(&mut self) -> Result<bool, Failure> {
        Ok(self.take(1)?[0] != 0)
    }

    /// A buffer; an absent one is empty.
    pub fn buffer(&mut self) -> Result<&'a [u8], Failure> {
        let length = self.int()?;
        self.take(usize::try_from(length).unwrap_or(0))
    }

    pub fn string(&mut self) -> Result<&'a str, Failure> {
        std::str::from_utf8(self.buffer()?).map_err(|_| Failure::malformed())
    }

    pub fn stat(&mut self) -> Result<Stat, Failure> {
        let (created, modified) = (self.long()?, self.long()?);
        self.take(16)?;
        let version = self.int()?.into();
        self.take(32)?;
        Ok(Stat {
            created,
            modified,
            version,
        })
    }
}

/// Who may do what with a new node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acl {
    /// Anyone may do anything.
    Open,
    /// Only the user that created it.
    Creator,
}

/// ZooKeeper has given each version, so it fits.
fn wire_version(version: Version) -> i32 {
    i32::try_from(version).unwrap_or(i32::MAX)
}

fn op_code(op: &Op) -> i32 {
    match op {
        // Nobody asks it for readers.
        Op::Check { .. } | Op::Readers { .. } => opcode::CHECK,
        Op::Create { .. } => opcode::CREATE,
        Op::Set { .. } => opcode::SET_DATA,
        Op::Delete { .. } => opcode::DELETE,
    }
}

fn write_op(op: &Op, acl: &Acl, to: &mut Writer) {
    match op {
        Op::Check { path, version } | Op::Delete { path, version } => {
            to.string(path).int(wire_version(*version));
        }
        Op::Readers { path } => {
            to.string(path).int(wire_version(ANY));
        }
        Op::Create { path, data, kind } => {
            let flags = match kind {
                NodeKind::Persistent => 0,
                NodeKind::Ephemeral => 1,
                NodeKind::EphemeralSequential => 3,
            };
            to.string(path).buffer(data).acl(acl).int(flags);
        }
        Op::Set { path, data, version } => {
            to.string(path).buffer(data).int(wire_version(*version));
        }
    }
}

/// The body of a multi.
pub fn write_multi(ops: &[Op], acl: &Acl, to: &mut Writer) {
    for op in ops {
        to.int(op_code(op)).bool(false).int(-1);
        write_op(op, acl, to);
    }
    to.int(-1).bool(true).int(-1);
}

/// The answer to a multi.
///
/// # Errors
/// [`Failure::Refused`] with the index of the operation that could not be applied.
pub fn read_multi(body: &[u8]) -> Result<Vec<Done>, Failure> {
    let mut reader = Reader(body);
    let mut done = Vec::new();
    let mut refused = None;
    for index in 0.. {
        let (code, is_end) = (reader.int()?, reader.bool()?);
        reader.int()?;
        if is_end {
            break;
        }
        match code {
            opcode::CHECK | opcode::DELETE => done.push(Done::Nothing),
            opcode::CREATE => done.push(Done::Created(reader.string()?.to_owned(), 0)),
            opcode::SET_DATA => done.push(Done::Set(reader.stat()?)),
            // Operations before the refused one have code 0, and those after it another code.
            _ => {
                let code = Code(reader.int()?);
                if code != Code::OK && refused.is_none() {
                    let reason = code.reason();
                    refused = Some(Failure::Refused { index, reason });
                }
            }
        }
    }
    match refused {
        Some(refused) => Err(refused),
        None => Ok(done),
    }
}

/// An error code of ZooKeeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    pub const OK: Self = Self(0);
    pub const CONNECTION_LOSS: Self = Self(-4);
    pub const NO_NODE: Self = Self(-101);
    pub const NO_AUTH: Self = Self(-102);
    pub const BAD_VERSION: Self = Self(-103);
    pub const NODE_EXISTS: Self = Self(-110);
    pub const NOT_EMPTY: Self = Self(-111);
    pub const SESSION_EXPIRED: Self = Self(-112);
    pub const AUTH_FAILED: Self = Self(-115);
    pub const SESSION_MOVED: Self = Self(-118);

    /// The failure of a request that is answered with it.
    pub fn failure(self) -> Failure {
        match self {
            Self::SESSION_EXPIRED | Self::CONNECTION_LOSS | Self::SESSION_MOVED => {
                Failure::Unavailable(self.meaning().into())
            }
            code => Failure::Error(code.reason()),
        }
    }

    fn reason(self) -> Reason {
        match self {
            Self::NO_NODE => Reason::NoNode,
            Self::NO_AUTH => Reason::NoAuth,
            Self::BAD_VERSION => Reason::BadVersion,
            Self::NODE_EXISTS => Reason::NodeExists,
            Self::NOT_EMPTY => Reason::NotEmpty,
            code => Reason::Other(format!("{} ({})", code.meaning(), code.0)),
        }
    }

    /// What it means, where that is no [`Reason`] of its own.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::SESSION_EXPIRED => "the session has expired",
            Self::AUTH_FAILED => "the credentials are wrong",
            Self::SESSION_MOVED => "the session is at another server",
            Self::CONNECTION_LOSS => "the connection was lost",
            Self(-122 | -125) => "its quota is used up",
            Self(-119) => "the server is read-only",
            Self(-5) => "the request could not be read, or is larger than jute.maxbuffer",
            _ => "an error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_multi_names_the_operation_that_could_not_be_applied() {
        let mut answer = Writer::default();
        for code in [0, Code::NODE_EXISTS.0, -2] {
            answer.int(-1).bool(false).int(code).int(code);
        }
        answer.int(-1).bool(true).int(-1);
        let refused = Failure::Refused {
            index: 1,
            reason: Reason::NodeExists,
        };
        assert_eq!(read_multi(&answer.0), Err(refused));
    }

    #[test]
    fn a_cut_answer_is_malformed() {
        let mut answer = Writer::default();
        answer.int(opcode::DELETE).bool(false).int(0);
        answer.int(-1).bool(true).int(-1);
        assert_eq!(read_multi(&answer.0), Ok(vec![Done::Nothing]));
        for length in 0..answer.0.len() {
            assert_eq!(read_multi(&answer.0[..length]), Err(Failure::malformed()), "{length}");
        }
    }
}
