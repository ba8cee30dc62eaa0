//! The messages from one server to another.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::root::{Resolved, token_number, token_of};
use super::store::Stamp;
use crate::backend::{Change, ChangeKind};
use crate::claim::{Cause, ClaimLabels};
use crate::name::{ClaimId, FencingToken, Identity, InvalidField, Metadata, Owner};

/// The format that this release writes, and reads: others are passed over, as messages that were lost.
const FORMAT: u8 = 2;

/// What a server is told of one commit.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Notice {
    /// Its waiting claims that may be eligible, or were taken from their calls.
    pub next: Vec<ClaimId>,
    /// How long after the commit a lease ends, earlier than the server knows: it looks at the lock then.
    pub ends: Option<Duration>,
    /// The tokens that were forcibly released.
    pub forced: Vec<FencingToken>,
    /// The changes, and the number of the one before the first.
    pub changes: Option<(u64, Vec<Change>)>,
}

#[derive(Serialize, Deserialize)]
struct NoticeRecord {
    /// The last token before the commit: from it and the stamp follow those that the commit made.
    token: u64,
    next: Vec<[u8; 16]>,
    ends: Option<Duration>,
    forced: Vec<u64>,
    after: u64,
    changes: Vec<ChangeRecord>,
}

#[derive(Serialize, Deserialize)]
struct ChangeRecord {
    kind: u8,
    owner: String,
    identity: String,
    metadata: Vec<(String, String)>,
    token: Option<u64>,
    holders: usize,
    waiters: usize,
}

impl Notice {
    /// The bytes of a notice of a commit before which the lock's last token was this one.
    pub fn write(&self, token: u64) -> Vec<u8> {
        let (after, changes) = self.changes.clone().unwrap_or_default();
        let record = NoticeRecord {
            token,
            next: self.next.iter().map(|claim| *claim.as_bytes()).collect(),
            ends: self.ends,
            forced: self.forced.iter().map(|token| token.get()).collect(),
            after,
            changes: changes.iter().map(ChangeRecord::of).collect(),
        };
        postcard::to_extend(&record, vec![FORMAT]).unwrap_or_default()
    }

    /// Reads a notice of a commit with this stamp. Absent if it cannot be read: it then counts as lost.
    pub fn read(bytes: &[u8], stamp: Stamp) -> Option<Self> {
        let (&FORMAT, record) = bytes.split_first()? else {
            return None;
        };
        let record: NoticeRecord = postcard::from_bytes(record).ok()?;
        let resolved = Resolved::new(record.token, stamp);
        let forced = record.forced.into_iter().map(FencingToken::new);
        let changes = record.changes.into_iter().map(|change| change.read(&resolved));
        let changes = changes.collect::<Result<Vec<_>, _>>().ok()?;
        Some(Self {
            next: record.next.into_iter().map(ClaimId::from_bytes).collect(),
            ends: record.ends,
            forced: forced.collect::<Result<_, _>>().ok()?,
            changes: (!changes.is_empty()).then_some((record.after, changes)),
        })
    }
}

/// The kinds of changes, by their numbers in a message.
const KINDS: [ChangeKind; 8] = [
    ChangeKind::Queued,
    ChangeKind::Granted,
    ChangeKind::Updated,
    ChangeKind::Ended(Cause::Released),
    ChangeKind::Ended(Cause::Expired),
    ChangeKind::Ended(Cause::Forced),
    ChangeKind::Ended(Cause::Undone),
    ChangeKind::Ended(Cause::Cancelled),
];

impl ChangeRecord {
    fn of(change: &Change) -> Self {
        let kind = KINDS.iter().position(|kind| *kind == change.kind);
        Self {
            kind: kind.map_or(u8::MAX, |kind| kind as u8),
            owner: change.claim.owner.as_str().into(),
            identity: change.claim.identity.as_str().into(),
            metadata: change.claim.metadata.entries().to_vec(),
            token: change.token.map(token_number),
            holders: change.holders,
            waiters: change.waiters,
        }
    }

    fn read(self, resolved: &Resolved) -> Result<Change, InvalidField> {
        let token = self.token.map(token_of).transpose()?;
        Ok(Change {
            kind: *KINDS
                .get(usize::from(self.kind))
                .ok_or_else(|| InvalidField::new("kind", "is unknown"))?,
            claim: ClaimLabels::of(
                &Owner::new(&self.owner)?,
                &Identity::authenticated(&self.identity),
                &Metadata::new(self.metadata)?,
            ),
            token: token.map(|token| resolved.token(token)),
            holders: self.holders,
            waiters: self.waiters,
        })
    }
}
