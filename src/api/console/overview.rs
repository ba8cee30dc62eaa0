//! An overview of a namespace: its longest queues, the owners of its locks, and the locks of one owner.
//!
//! The server reads the pages of ListLocks, so that the page gets a few lines instead of thousands of locks. It reads for
//! a bounded time, and then shows what it has read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use prost::{Message, Name};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tonic::Status;

use super::calls::{Calls, json_bug};
use crate::api::layer::CallService;
use crate::api::{json, proto, status};
use crate::backend::BackendError;
use crate::error::Error;
use crate::name::InvalidField;
use crate::rpc::path;

/// The name of the call.
pub(super) const NAME: &str = "Overview";
/// The maximum number of pages that are read.
const MAX_PAGES: usize = 100;
/// How many locks the first page has, so that a slow store shows something soon. Each page is twice as large as the one
/// before, up to the server's limit.
const FIRST_PAGE: i32 = 250;
/// How long the pages are read.
const TIME_LIMIT: Duration = Duration::from_secs(8);
/// How many locks and owners are shown.
const SHOWN: usize = 100;
/// How many locks of one owner are shown.
const SHOWN_OF_OWNER: usize = 1000;
/// How many locks of an owner are named.
const NAMED: usize = 5;
/// The maximum size in bytes of the owners that are counted, and of their locks that are named.
const OWNER_BYTES: usize = 4 << 20;
/// The size in bytes of an owner beside its texts.
const OWNER_OVERHEAD: usize = 256;

/// What is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    namespace: String,
    #[serde(default)]
    prefix: String,
    /// Whose locks are shown.
    of: Option<Holding>,
}

/// Who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
struct Holding {
    owner: String,
    identity: String,
}

/// The overview of a namespace.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Overview {
    /// How many locks were read.
    locks: u64,
    /// How many claims hold.
    holders: u64,
    /// How many claims wait.
    waiters: u64,
    /// Whether all locks were read.
    complete: bool,
    /// Whether all owners of the locks that were read were counted.
    all_owners: bool,
    /// The locks with the longest queues.
    longest: Vec<serde_json::Value>,
    /// The owners with the most locks, of those that are the first holder of a lock.
    owners: Vec<Owned>,
    /// The locks of the owner that was asked for.
    held: Vec<serde_json::Value>,
}

/// What one owner holds.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Owned {
    owner: String,
    identity: String,
    /// How many locks it holds first.
    locks: u64,
    /// How many claims wait for these.
    waiters: u64,
    /// The shortest remaining time to live, in seconds.
    shortest_ttl_s: f64,
    /// Some of the locks.
    names: Vec<String>,
}

/// Reads the locks with the credentials in these headers.
///
/// # Errors
/// The status of a ListLocks that failed.
///
/// # Cancellation safety
/// Reads only.
pub(super) async fn overview<S: CallService>(
    calls: &mut Calls<S>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Vec<u8>, Status> {
    let question: Question = serde_json::from_slice(body).map_err(|problem| {
        let invalid = InvalidField::new("request", problem.to_string());
        status::of(invalid)
    })?;
    let mut reading = Reading {
        of: question.of,
        ..Reading::default()
    };
    let request = proto::ListLocksRequest {
        namespace: question.namespace,
        prefix: question.prefix,
        ..proto::ListLocksRequest::default()
    };
    let permits = Arc::clone(&calls.limits.overviews);
    let _permit = permits.take(&calls.remote).await.map_err(status::of)?;
    match timeout(TIME_LIMIT, reading.read(calls, headers, request)).await {
        Ok(read) => read?,
        Err(_) if reading.overview.locks > 0 => {}
        Err(_) => {
            let reason = format!("no locks were read within {TIME_LIMIT:?}");
            return Err(status::of(Error::from(BackendError::Unavailable { reason })));
        }
    }
    reading.json()
}

/// What was read so far.
#[derive(Debug, Default)]
struct Reading {
    overview: Overview,
    longest: Vec<proto::LockSummary>,
    owners: BTreeMap<Holding, Owned>,
    of: Option<Holding>,
    held: Vec<proto::LockSummary>,
    /// The size of the owners in bytes.
    owner_bytes: usize,
    /// Whether some owners were not counted.
    lacks_owners: bool,
}

impl Reading {
    /// Reads pages up to the last one or [`MAX_PAGES`].
    ///
    /// # Cancellation safety
    /// If dropped, the pages that were read are counted.
    async fn read<S: CallService>(
        &mut self,
        calls: &mut Calls<S>,
        headers: &HeaderMap,
        mut request: proto::ListLocksRequest,
    ) -> Result<(), Status> {
        request.page_size = FIRST_PAGE;
        for _ in 0..MAX_PAGES {
            request.page_size = request.page_size.min(calls.limits.page);
            let page = calls.unary(path::LIST_LOCKS, headers, request.encode_to_vec()).await?;
            let page = proto::ListLocksResponse::decode(page).map_err(status::internal)?;
            self.add(page.locks);
            if page.next_page_token.is_empty() {
                self.overview.complete = true;
                break;
            }
            request.page_token = page.next_page_token;
            request.page_size = request.page_size.saturating_mul(2);
        }
        Ok(())
    }

    fn add(&mut self, locks: Vec<proto::LockSummary>) {
        for lock in locks {
            self.overview.locks += 1;
            self.overview.holders += u64::from(lock.holder_count);
            self.overview.waiters += u64::from(lock.waiter_count);
            self.count_owner(&lock);
            if lock.waiter_count > 0 {
                self.longest.push(lock);
            }
        }
        self.longest
            .sort_by(|one, other| (other.waiter_count, &one.name).cmp(&(one.waiter_count, &other.name)));
        self.longest.truncate(SHOWN);
    }

    fn count_owner(&mut self, lock: &proto::LockSummary) {
        let Some(holder) = &lock.first_holder else { return };
        let key = Holding {
            owner: holder.owner.clone(),
            identity: holder.identity.clone(),
        };
        if self.of.as_ref() == Some(&key) && self.held.len() < SHOWN_OF_OWNER {
            self.held.push(lock.clone());
        }
        let is_full = self.owner_bytes >= OWNER_BYTES;
        if !self.owners.contains_key(&key) {
            if is_full {
                self.lacks_owners = true;
                return;
            }
            // The key has the texts once more.
            self.owner_bytes += OWNER_OVERHEAD + 2 * (key.owner.len() + key.identity.len());
        }
        let remaining = holder.remaining_ttl.and_then(|ttl| Duration::try_from(ttl).ok());
        let remaining = remaining.unwrap_or_default().as_secs_f64();
        let owned = self.owners.entry(key).or_insert_with(|| Owned {
            owner: holder.owner.clone(),
            identity: holder.identity.clone(),
            shortest_ttl_s: remaining,
            ..Owned::default()
        });
        owned.locks += 1;
        owned.waiters += u64::from(lock.waiter_count);
        owned.shortest_ttl_s = owned.shortest_ttl_s.min(remaining);
        if owned.names.len() < NAMED && !is_full {
            self.owner_bytes += lock.name.len();
            owned.names.push(lock.name.clone());
        }
    }

    fn json(mut self) -> Result<Vec<u8>, Status> {
        let summary = json::message(&proto::LockSummary::full_name()).ok_or_else(status::unknown_method)?;
        let values = |locks: &[proto::LockSummary]| {
            let values = locks
                .iter()
                .map(|lock| json::value(summary.clone(), &lock.encode_to_vec()));
            values.collect::<Result<Vec<_>, _>>().map_err(json_bug)
        };
        self.overview.all_owners = !self.lacks_owners;
        self.overview.longest = values(&self.longest)?;
        self.overview.held = values(&self.held)?;
        self.overview.owners = self.owners.into_values().collect();
        self.overview
            .owners
            .sort_by(|one, other| (other.locks, &one.owner).cmp(&(one.locks, &other.owner)));
        self.overview.owners.truncate(SHOWN);
        serde_json::to_vec(&self.overview).map_err(status::internal)
    }
}

#[cfg(test)]
mod tests;
