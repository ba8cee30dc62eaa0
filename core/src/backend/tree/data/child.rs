//! The names of a lock's children. They say all that the rule needs, so a list of a lock can be judged without data.
//!
//! `h-<mode>-<claim>-<call>-<grant>` is a holder, and `q-<mode>-<claim>-<call>-<place>-<sequence>` a waiter. The mode
//! is `x`, `s` or `p<permits>.<limit>`, followed by `_r` if the claim is reentrant and `_t` if it has a request id. The
//! place is `n` for a waiter in the order of its sequence number, and the older number of a waiter that was adopted. What
//! follows a `~` is the store's.

use std::cmp::Ordering;

use crate::backend::NewClaim;
use crate::name::{CallId, ClaimId, Mode};

/// Whose child it is, as its name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    pub name: String,
    pub role: Role,
    pub claim: ClaimId,
    /// The call that was granted, or that waits.
    pub call: CallId,
    pub mode: Mode,
    pub reentrant: bool,
    pub retryable: bool,
}

/// What a child is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Holder {
        /// The number of its grant at its replica, which makes its name a new one.
        grant: u32,
    },
    Waiter {
        /// Its place in the queue.
        place: Place,
    },
}

/// A place in the queue of one lock: the number of its node. If it fits into 32 bits, it wraps around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(pub i64);

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        match (i32::try_from(self.0), i32::try_from(other.0)) {
            (Ok(own), Ok(other)) => own.wrapping_sub(other).cmp(&0),
            _ => self.0.cmp(&other.0),
        }
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Place {
    /// A number in the same order.
    pub fn position(self) -> u64 {
        self.0.wrapping_sub(i32::MIN.into()).cast_unsigned()
    }
}

impl Child {
    /// The name of the holder that a call is granted.
    pub fn holder_name(new: &NewClaim, grant: u32) -> String {
        format!("h-{}-{}-{}-{grant:02x}", mode_text(new), new.id, new.call)
    }

    /// The beginning of the name of a call's waiter. `adopted` is the place that it takes over.
    pub fn waiter_prefix(new: &NewClaim, adopted: Option<Place>) -> String {
        let place = adopted.map_or("n".into(), |Place(place)| match i32::try_from(place) {
            Ok(place) => format!("{:08x}", place.cast_unsigned()),
            Err(_) => format!("{place:016x}"),
        });
        format!("q-{}-{}-{}-{place}-", mode_text(new), new.id, new.call)
    }

    /// Reads a name; `None` if it is not of a child.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('~').next()?.splitn(6, '-');
        let kind = parts.next()?;
        let (mode, reentrant, retryable) = parse_mode(parts.next()?)?;
        let claim = ClaimId::from_bytes(parse_id(parts.next()?)?);
        let call = CallId::from_bytes(parse_id(parts.next()?)?);
        let place = parts.next()?;
        let role = match kind {
            "h" => Role::Holder {
                grant: u32::from_str_radix(place, 16).ok()?,
            },
            "q" => Role::Waiter {
                place: parse_place(place, parts.next()?)?,
            },
            _ => return None,
        };
        Some(Self {
            name: name.to_owned(),
            role,
            claim,
            call,
            mode,
            reentrant,
            retryable,
        })
    }

    /// Its place, if it waits.
    pub fn place(&self) -> Option<Place> {
        match self.role {
            Role::Waiter { place } => Some(place),
            Role::Holder { .. } => None,
        }
    }

    /// Whether it holds.
    pub fn holds(&self) -> bool {
        matches!(self.role, Role::Holder { .. })
    }
}

fn mode_text(new: &NewClaim) -> String {
    let mut text = match new.mode {
        Mode::Exclusive => "x".to_owned(),
        Mode::Shared => "s".to_owned(),
        Mode::Semaphore { permits, limit } => format!("p{permits}.{limit}"),
    };
    if new.reentrant {
        text.push_str("_r");
    }
    if new.retryable {
        text.push_str("_t");
    }
    text
}

fn parse_mode(text: &str) -> Option<(Mode, bool, bool)> {
    let mut parts = text.split('_');
    let mode = match parts.next()? {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        permits => {
            let (permits, limit) = permits.strip_prefix('p')?.split_once('.')?;
            Mode::semaphore(permits.parse().ok()?, limit.parse().ok()?).ok()?
        }
    };
    let (mut reentrant, mut retryable) = (false, false);
    for flag in parts {
        match flag {
            "r" => reentrant = true,
            "t" => retryable = true,
            _ => return None,
        }
    }
    Some((mode, reentrant, retryable))
}

fn parse_id(text: &str) -> Option<[u8; 16]> {
    let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32)?;
    Some(number.to_be_bytes())
}

fn parse_place(place: &str, sequence: &str) -> Option<Place> {
    match place {
        "n" => Some(Place(sequence.parse().ok()?)),
        adopted => {
            let number = i64::from_str_radix(adopted, 16).ok()?;
            let short = || u32::try_from(number).map_or(number, |number| number.cast_signed().into());
            Some(Place(if adopted.len() == 8 { short() } else { number }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_mode_claim_call_and_place() {
        let mut new = NewClaim::numbered(7);
        new.retryable = true;
        new.mode = Mode::semaphore(2, 5).unwrap();
        let holder = Child::parse(&Child::holder_name(&new, 1)).unwrap();
        assert_eq!((holder.claim, holder.call, holder.mode), (new.id, new.call, new.mode));
        assert!(holder.retryable && !holder.reentrant && holder.role == Role::Holder { grant: 1 });
        let parse = |adopted, sequence: &str| {
            let name = Child::waiter_prefix(&new, adopted) + sequence;
            Child::parse(&name).and_then(|child| child.place())
        };
        assert_eq!(parse(None, "0000000012"), Some(Place(12)));
        assert_eq!(parse(None, "-2147483648"), Some(Place(i32::MIN.into())));
        assert_eq!(parse(Some(Place(-3)), "0000000012"), Some(Place(-3)));
        for bad in ["", "h", "x-x-1-2-3", "h-y-00-00-00", "lost"] {
            assert_eq!(Child::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn places_keep_their_order_where_sequence_numbers_wrap_around() {
        assert!(Place(1) < Place(2));
        assert!(Place(i32::MAX.into()) < Place(i32::MIN.into()));
        assert!(Place(1).position() < Place(2).position());
    }
}
