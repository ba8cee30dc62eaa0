//! The calls that have asked for a hold: whether a second one has found it, and on which stream of a session the last came.
//!
//! A session that breaks off goes on on another stream, maybe at another replica, and its streams are numbered. What a
//! replica reads of an earlier stream after the later one has asked for the same claim changes nothing, however late it is.

use serde::{Deserialize, Serialize};

/// Which stream of a session a call came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamNumber {
    session: u64,
    number: u64,
}

impl StreamNumber {
    /// The stream of this number, of the session whose id has this digest.
    pub fn new(session: u64, number: u64) -> Self {
        Self { session, number }
    }

    /// Whether both are of one session.
    fn is_beside(self, other: Self) -> bool {
        self.session == other.session
    }
}

/// See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "CallersRecord", into = "CallersRecord")]
pub struct Callers {
    /// Whether a retry has found the hold that was not one of a later stream; then no call undoes it.
    pub adopted: bool,
    /// The stream of the last call that came on one.
    stream: Option<StreamNumber>,
}

impl Callers {
    /// One call.
    pub fn first(stream: Option<StreamNumber>) -> Self {
        Self { adopted: false, stream }
    }

    /// Whether a later stream of the call's session has asked for the hold.
    pub fn supersede(&self, stream: Option<StreamNumber>) -> bool {
        let both = stream.zip(self.stream);
        both.is_some_and(|(own, latest)| own.is_beside(latest) && own.number < latest.number)
    }

    /// Whether the last call came on this stream, or an earlier one of its session.
    pub fn are_of(&self, stream: StreamNumber) -> bool {
        let is_of = |latest: StreamNumber| latest.is_beside(stream) && latest.number <= stream.number;
        self.stream.is_some_and(is_of)
    }

    /// Notes a call, which was not superseded. Returns whether that changes anything.
    pub fn note(&mut self, stream: Option<StreamNumber>) -> bool {
        let latest = stream.or(self.stream);
        std::mem::replace(&mut self.stream, latest) != latest
    }

    /// Notes that one more call has found the hold, which was not superseded. Returns whether it is that call's alone: what an
    /// earlier stream of its session asked for, it does not ask for any more.
    pub fn found(&mut self, stream: Option<StreamNumber>) -> bool {
        let both = stream.zip(self.stream);
        let is_later = both.is_some_and(|(own, latest)| own.is_beside(latest) && own.number > latest.number);
        self.adopted |= !is_later;
        self.note(stream);
        !self.adopted
    }

    /// The callers of a claim that this call has taken over from `older`.
    pub fn after(mut self, older: Self) -> Self {
        self.stream = self.stream.or(older.stream);
        self
    }
}

/// In place of a flag that says whether a retry has found the hold: its bytes are those of the flag without a stream.
#[derive(Serialize, Deserialize)]
enum CallersRecord {
    One,
    Several,
    OneOn(StreamNumber),
    SeveralOn(StreamNumber),
}

impl From<Callers> for CallersRecord {
    fn from(callers: Callers) -> Self {
        match (callers.adopted, callers.stream) {
            (false, None) => Self::One,
            (true, None) => Self::Several,
            (false, Some(stream)) => Self::OneOn(stream),
            (true, Some(stream)) => Self::SeveralOn(stream),
        }
    }
}

impl From<CallersRecord> for Callers {
    fn from(record: CallersRecord) -> Self {
        let (adopted, stream) = match record {
            CallersRecord::One => (false, None),
            CallersRecord::Several => (true, None),
            CallersRecord::OneOn(stream) => (false, Some(stream)),
            CallersRecord::SeveralOn(stream) => (true, Some(stream)),
        };
        Self { adopted, stream }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_later_stream_of_one_session_supersedes() {
        let on = |session, number| Some(StreamNumber::new(session, number));
        let mut callers = Callers::first(on(1, 2));
        assert!(callers.supersede(on(1, 1)));
        for other in [on(1, 2), on(1, 3), on(2, 1), None] {
            assert!(!callers.supersede(other), "{other:?}");
        }
        let mut found = callers;
        assert!(found.found(on(1, 3)) && found.found(on(1, 4)), "each is the only one");
        assert!(
            !found.found(on(1, 4)) && !found.found(on(1, 5)),
            "two are of one stream"
        );
        assert!(!{ callers }.found(None) && !{ callers }.found(on(2, 9)));
        assert!(!callers.note(None) && callers.note(on(1, 4)) && callers.supersede(on(1, 3)));
    }
}
