//! The arguments of the scripts, their replies, and the bytes of a message.

use redis::Value;

use super::KeySpace;
use crate::backend::BackendError;
use crate::backend::record::store::{
    Commit, Committed, Found, FoundRoot, Heard, LockTime, Message, Root, ServerId, Stamp, StoreTime, Version,
};
use crate::backend::redis_server::failure::broken;
use crate::backend::redis_server::reply::Values;
use crate::backend::redis_server::script::Answer;
use crate::name::LockName;

/// In place of the version of a root that does not exist.
const NONE: [u8; 8] = [0; 8];

/// The longest time for which Redis can keep a key, with what is added to it, in milliseconds.
const FOREVER: u128 = 1 << 52;

/// The arguments of `commit.lua` and `grant.lua`.
pub fn commit(space: &KeySpace, commit: &Commit) -> Vec<Vec<u8>> {
    let mut head = Vec::with_capacity(76);
    head.extend(version(commit.expected));
    head.extend(version(Some(commit.version)));
    head.extend(commit.server.0.get().to_be_bytes());
    let reserve = commit.reserve.map_or(0, |period| period.as_micros() as u64);
    let keep = commit.keep.as_millis().min(FOREVER) as u64;
    for number in [
        commit.not_before.0,
        commit.not_after.0,
        commit.latest.0,
        commit.floor,
        reserve,
        keep,
    ] {
        head.extend(double(number));
    }
    head.extend((commit.put.len() as u16).to_be_bytes());
    head.extend((commit.messages.len() as u16).to_be_bytes());
    let mut args = vec![head, commit.body.clone()];
    for (number, body) in &commit.put {
        args.extend([part(*number), body.clone()]);
    }
    for message in &commit.messages {
        args.extend([space.channel(message.to).into_bytes(), payload(&commit.lock, message)]);
    }
    args.extend(commit.delete.clone().map(part));
    args
}

/// The arguments of `read.lua`.
pub fn read(known: Option<Version>, with_body: bool) -> [Vec<u8>; 2] {
    [version(known).to_vec(), vec![b'0' + u8::from(with_body)]]
}

/// The arguments of `remove.lua`.
pub fn remove(at: Version, floor: u64) -> Vec<Vec<u8>> {
    vec![[version(Some(at)), double(floor)].concat()]
}

/// A version, or that there is none.
fn version(version: Option<Version>) -> [u8; 8] {
    version.map_or(NONE, |version| version.0.get().to_be_bytes())
}

/// The name of a part.
pub fn part(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// A number of microseconds or milliseconds, or a token: all have 53 bits.
fn double(number: u64) -> [u8; 8] {
    (number as f64).to_be_bytes()
}

/// The reply of `commit.lua` and `grant.lua`.
pub fn committed(answer: Answer) -> Result<Committed, BackendError> {
    match (answer.value, answer.unconfirmed) {
        (Value::BulkString(bytes), unconfirmed) => {
            let stamp = Reader(&bytes).stamp()?;
            Ok(unconfirmed.map_or(Committed::Applied(stamp), |reason| {
                Committed::Unconfirmed(stamp, reason)
            }))
        }
        (other, _) => found(other).map(Committed::Refused),
    }
}

/// What a script has found.
pub fn found(reply: Value) -> Result<Found, BackendError> {
    let mut values = Values::of(reply)?;
    let (clocks, reservation): (Vec<u8>, Vec<u8>) = (values.take()?, values.take()?);
    let mut clocks = Reader(&clocks);
    let (now, floor) = (clocks.stamp()?, clocks.double()?);
    let mut reservation = Reader(&reservation);
    let reserved = match reservation.is_empty() {
        true => None,
        false => Some((ServerId(reservation.number()?), LockTime(reservation.double()?))),
    };
    let root = match values.optional::<Vec<u8>>()? {
        None => FoundRoot::Absent,
        Some(head) if head.is_empty() => FoundRoot::Known,
        Some(head) => {
            let mut head = Reader(&head);
            FoundRoot::Root(Root {
                stamp: head.stamp()?,
                version: Version(head.number()?),
                body: values.take()?,
            })
        }
    };
    Ok(Found {
        now,
        root,
        reserved,
        floor,
    })
}

/// The reply of `beat.lua`.
pub fn counters(reply: Value) -> Result<Vec<(ServerId, u64)>, BackendError> {
    let mut values = Values::of(reply)?;
    let mut counters = Vec::new();
    while let Some(server) = values.optional::<Vec<u8>>()? {
        let counter: Vec<u8> = values.take()?;
        counters.push((ServerId(Reader(&server).number()?), Reader(&counter).double()?));
    }
    Ok(counters)
}

/// What a script publishes behind the stamp: the length of the lock's name, the name and the body.
fn payload(lock: &LockName, message: &Message) -> Vec<u8> {
    let name = lock.as_str().as_bytes();
    let mut payload = Vec::with_capacity(2 + name.len() + message.body.len());
    payload.extend((name.len() as u16).to_be_bytes());
    payload.extend(name);
    payload.extend(&message.body);
    payload
}

/// A published message; a gap if it cannot be read.
pub fn heard(message: &[u8]) -> Heard {
    read_message(message).unwrap_or(Heard::Gap)
}

fn read_message(message: &[u8]) -> Option<Heard> {
    let mut reader = Reader(message);
    let stamp = reader.stamp().ok()?;
    let (length, rest) = reader.0.split_first_chunk()?;
    let (name, body) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    let lock = LockName::new(std::str::from_utf8(name).ok()?).ok()?;
    Some(Heard::Message(lock, stamp, body.to_vec()))
}

/// Reads what a script has packed.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn bytes(&mut self) -> Result<[u8; 8], BackendError> {
        let (bytes, rest) = self
            .0
            .split_first_chunk()
            .ok_or_else(|| broken("a reply is too short"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn number<T: TryFrom<u64>>(&mut self) -> Result<T, BackendError> {
        let number = u64::from_be_bytes(self.bytes()?);
        T::try_from(number).map_err(|_| broken("a reply has a number out of range"))
    }

    fn double(&mut self) -> Result<u64, BackendError> {
        Ok(f64::from_be_bytes(self.bytes()?) as u64)
    }

    fn stamp(&mut self) -> Result<Stamp, BackendError> {
        Ok(Stamp {
            clock: LockTime(self.double()?),
            time: StoreTime(self.double()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn a_message_names_the_lock_and_the_commit() {
        let lock = LockName::new("ä:b").unwrap();
        let message = Message {
            to: ServerId(NonZeroU64::MIN),
            body: vec![0, 255],
        };
        let sent = [&double(7)[..], &double(1 << 52), &payload(&lock, &message)].concat();
        let stamp = Stamp {
            clock: LockTime(7),
            time: StoreTime(1 << 52),
        };
        assert_eq!(heard(&sent), Heard::Message(lock, stamp, vec![0, 255]));
        assert_eq!(heard(&sent[..19]), Heard::Gap);
    }
}
