//! A client of ZooKeeper's own protocol for what an operator does by hand: nodes deleted, rights taken away, sessions of
//! others ended.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const SET_ACL: i32 = 7;
const GET_CHILDREN: i32 = 8;
const AUTH: i32 = 100;
const CLOSE: i32 = -11;
/// Any version.
const ANY: i32 = -1;
/// All rights of an ACL.
const ALL: i32 = 31;

/// A connection with a session.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    session: i64,
    xid: i32,
}

/// A code of ZooKeeper, such as -101: no node.
#[derive(Debug, PartialEq, Eq)]
pub struct Code(pub i32);

/// Who may do all, or nobody else: `world:anyone`, or a user of the digest scheme.
pub type Acl<'a> = (&'a str, &'a str);

impl Connection {
    /// A connection with a session of its own.
    pub fn open(address: &str) -> Self {
        Self::with_session(address, 0, [0; 16]).expect("ZooKeeper answers")
    }

    /// A second connection with the session of another client. `None`: it has ended.
    pub fn take_over(address: &str, session: i64) -> Option<Self> {
        Self::with_session(address, session, password(session)).ok()
    }

    fn with_session(address: &str, session: i64, password: [u8; 16]) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.set_nodelay(true)?;
        let mut connection = Self {
            stream,
            session,
            xid: 0,
        };
        let mut request = Vec::new();
        request.extend(0_i32.to_be_bytes());
        request.extend(0_i64.to_be_bytes());
        request.extend(10_000_i32.to_be_bytes());
        request.extend(session.to_be_bytes());
        put_buffer(&mut request, &password);
        request.push(0);
        connection.send(&request)?;
        let answer = connection.receive()?;
        let negotiated = i32::from_be_bytes(answer[4..8].try_into().expect("four bytes"));
        let given = i64::from_be_bytes(answer[8..16].try_into().expect("eight bytes"));
        if negotiated <= 0 {
            return Err(io::Error::other("the session has ended"));
        }
        connection.session = given;
        Ok(connection)
    }

    /// Its session.
    pub fn session(&self) -> i64 {
        self.session
    }

    /// Ends its session, and with it all ephemeral nodes. False: its first client took it back before.
    pub fn close(mut self) -> bool {
        matches!(self.call(CLOSE, &[]), Ok(Ok(_)))
    }

    /// Creates a persistent node that only this may use.
    pub fn create(&mut self, path: &str, acl: Acl<'_>) -> Result<(), Code> {
        let mut payload = Vec::new();
        put_buffer(&mut payload, path.as_bytes());
        put_buffer(&mut payload, b"");
        put_acl(&mut payload, acl);
        payload.extend(0_i32.to_be_bytes());
        self.ask(CREATE, &payload).map(drop)
    }

    /// Deletes a node without children.
    pub fn delete(&mut self, path: &str) -> Result<(), Code> {
        let mut payload = Vec::new();
        put_buffer(&mut payload, path.as_bytes());
        payload.extend(ANY.to_be_bytes());
        self.ask(DELETE, &payload).map(drop)
    }

    /// Deletes a node and all that is under it.
    pub fn delete_all(&mut self, path: &str) {
        for child in self.children(path).unwrap_or_default() {
            self.delete_all(&format!("{path}/{child}"));
        }
        let deleted = self.delete(path);
        // It may have ended by itself.
        assert!(matches!(deleted, Ok(()) | Err(Code(-101))), "{path}: {deleted:?}");
    }

    /// Writes the data of a node.
    pub fn write(&mut self, path: &str, data: &[u8]) -> Result<(), Code> {
        let mut payload = Vec::new();
        put_buffer(&mut payload, path.as_bytes());
        put_buffer(&mut payload, data);
        payload.extend(ANY.to_be_bytes());
        self.ask(SET_DATA, &payload).map(drop)
    }

    /// Reads the data of a node.
    pub fn read(&mut self, path: &str) -> Result<Vec<u8>, Code> {
        let mut payload = Vec::new();
        put_buffer(&mut payload, path.as_bytes());
        payload.push(0);
        let answer = self.ask(GET_DATA, &payload)?;
        let (length, rest) = take_int(&answer);
        Ok(rest[..usize::try_from(length).expect("a length")].to_vec())
    }

    /// Lets only this use a node.
    pub fn set_acl(&mut self, path: &str, acl: Acl<'_>) -> Result<(), Code> {
        let mut payload = Vec::new();
        put_buffer(&mut payload, path.as_bytes());
        put_acl(&mut payload, acl);
        payload.extend(ANY.to_be_bytes());
        self.ask(SET_ACL, &payload).map(drop)
    }

    /// Says who this is: `user:password`.
    pub fn log_in(&mut self, login: &str) {
        let mut payload = Vec::new();
        payload.extend(0_i32.to_be_bytes());
        put_buffer(&mut payload, b"digest");
        put_buffer(&mut payload, login.as_bytes());
        self.ask(AUTH, &payload).expect("it is let in");
    }

    /// The names of a node's children.
    pub fn children(&mut self, path: &str) -> Result<Vec<String>, Code> {
        let mut payload = Vec::new();
        put_buffer(&mut payload, path.as_bytes());
        payload.push(0);
        let answer = self.ask(GET_CHILDREN, &payload)?;
        let (count, mut rest) = take_int(&answer);
        let names = (0..count).map(|_| {
            let (length, after) = take_int(rest);
            let (name, after) = after.split_at(usize::try_from(length).expect("a length"));
            rest = after;
            String::from_utf8(name.to_vec()).expect("text")
        });
        Ok(names.collect())
    }

    fn ask(&mut self, operation: i32, payload: &[u8]) -> Result<Vec<u8>, Code> {
        self.call(operation, payload).expect("ZooKeeper answers")
    }

    fn call(&mut self, operation: i32, payload: &[u8]) -> io::Result<Result<Vec<u8>, Code>> {
        self.xid += 1;
        let xid = if operation == AUTH { -4 } else { self.xid };
        let mut request = Vec::new();
        request.extend(xid.to_be_bytes());
        request.extend(operation.to_be_bytes());
        request.extend(payload);
        self.send(&request)?;
        let answer = self.receive()?;
        let (code, rest) = take_int(&answer[12..]);
        Ok(if code == 0 { Ok(rest.to_vec()) } else { Err(Code(code)) })
    }

    fn send(&mut self, request: &[u8]) -> io::Result<()> {
        let mut framed = Vec::new();
        put_buffer(&mut framed, request);
        self.stream.write_all(&framed)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length)).expect("a length")];
        self.stream.read_exact(&mut answer)?;
        Ok(answer)
    }
}

fn put_buffer(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(i32::try_from(bytes.len()).expect("short").to_be_bytes());
    to.extend(bytes);
}

fn put_acl(to: &mut Vec<u8>, (scheme, id): Acl<'_>) {
    to.extend(1_i32.to_be_bytes());
    to.extend(ALL.to_be_bytes());
    put_buffer(to, scheme.as_bytes());
    put_buffer(to, id.as_bytes());
}

fn take_int(from: &[u8]) -> (i32, &[u8]) {
    let (int, rest) = from.split_at(4);
    (i32::from_be_bytes(int.try_into().expect("four bytes")), rest)
}

/// The password of a session. ZooKeeper computes it from the id, by Java's random numbers.
fn password(session: i64) -> [u8; 16] {
    const SECRET: i64 = 0xb341_5c00;
    const MULTIPLIER: u64 = 0x5_deec_e66d;
    const MASK: u64 = (1 << 48) - 1;
    let mut seed = ((session ^ SECRET).cast_unsigned() ^ MULTIPLIER) & MASK;
    let mut bytes = [0; 16];
    for four in bytes.chunks_mut(4) {
        seed = (seed.wrapping_mul(MULTIPLIER) + 0xb) & MASK;
        let next = u32::try_from(seed >> 16).expect("32 bits");
        four.copy_from_slice(&next.to_le_bytes());
    }
    bytes
}
