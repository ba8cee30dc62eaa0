//! An overview of a namespace: its longest queues, the owners of its locks, and the locks of one owner.
//!
//! The server reads all pages of ListLocks, so that the page gets a few lines instead of thousands of locks.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Buf;
use http::{HeaderMap, Request, Response};
use prost::Message;
use serde::{Deserialize, Serialize};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::calls::{Calls, json_bug};
use crate::api::{json, proto, status};
use crate::name::InvalidField;
use crate::rpc::path;

/// The name of the call.
pub(super) const NAME: &str = "Overview";
/// The maximum number of pages that are read.
const MAX_PAGES: usize = 100;
/// How many locks and owners are shown.
const SHOWN: usize = 100;
/// How many locks of one owner are shown.
const SHOWN_OF_OWNER: usize = 1000;
/// How many locks of an owner are named.
const NAMED: usize = 5;
/// The maximum number of owners that are counted.
const MAX_OWNERS: usize = 20_000;

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
pub(super) async fn overview<S, B>(calls: &mut Calls<S>, headers: &HeaderMap, body: &[u8]) -> Result<Vec<u8>, Status>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + Unpin,
    B: http_body::Body<Error = Status> + Default + Send + 'static,
    B::Data: Buf + Send,
{
    let question: Question = serde_json::from_slice(body).map_err(|problem| {
        let invalid = InvalidField::new("request", problem.to_string());
        status::of(invalid)
    })?;
    let mut reading = Reading {
        of: question.of,
        ..Reading::default()
    };
    let mut page_token = String::new();
    for _ in 0..MAX_PAGES {
        let request = proto::ListLocksRequest {
            namespace: question.namespace.clone(),
            prefix: question.prefix.clone(),
            page_size: calls.limits().page,
            page_token,
        };
        let mut messages = calls.call(path::LIST_LOCKS, headers, &request.encode_to_vec()).await?;
        let page = messages.next().await?.unwrap_or_default();
        while messages.next().await?.is_some() {}
        let page = proto::ListLocksResponse::decode(page).map_err(status::internal)?;
        reading.add(page.locks);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            reading.overview.complete = true;
            break;
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
}

impl Reading {
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
        if self.owners.len() >= MAX_OWNERS && !self.owners.contains_key(&key) {
            return;
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
        if owned.names.len() < NAMED {
            owned.names.push(lock.name.clone());
        }
    }

    fn json(mut self) -> Result<Vec<u8>, Status> {
        let summary = json::message("fencepost.v1.LockSummary").ok_or_else(status::unknown_method)?;
        let values = |locks: &[proto::LockSummary]| {
            let values = locks
                .iter()
                .map(|lock| json::value(summary.clone(), &lock.encode_to_vec()));
            values.collect::<Result<Vec<_>, _>>().map_err(json_bug)
        };
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
mod tests {
    use super::*;

    fn lock(name: &str, owner: &str, waiters: u32, ttl_s: i64) -> proto::LockSummary {
        proto::LockSummary {
            name: name.into(),
            holder_count: 1,
            waiter_count: waiters,
            first_holder: Some(proto::Holder {
                owner: owner.into(),
                remaining_ttl: Some(prost_types::Duration {
                    seconds: ttl_s,
                    nanos: 0,
                }),
                ..proto::Holder::default()
            }),
        }
    }

    #[test]
    fn the_longest_queues_and_the_owners_of_most_locks_come_first() {
        let one = Holding {
            owner: "one".into(),
            identity: String::new(),
        };
        let mut reading = Reading {
            of: Some(one),
            ..Reading::default()
        };
        let many = (0..300).map(|number| lock(&format!("many-{number:03}"), "batch", 1, 9));
        reading.add(many.collect());
        reading.add(vec![
            lock("b", "one", 7, 3),
            lock("a", "one", 7, 2),
            lock("idle", "two", 0, 1),
        ]);
        let json = reading.json().unwrap_or_else(|status| panic!("{status}"));
        let shown: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let names = |key: &str, of: &str| -> Vec<String> {
            let all = shown[key].as_array().unwrap().iter();
            all.map(|one| one[of].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names("longest", "name")[..3], ["a", "b", "many-000"]);
        assert_eq!(shown["longest"].as_array().unwrap().len(), SHOWN);
        assert_eq!(shown["longest"][0]["firstHolder"]["owner"], "one");
        assert_eq!(names("held", "name"), ["b", "a"]);
        assert_eq!(names("owners", "owner"), ["batch", "one", "two"]);
        assert_eq!(
            (&shown["owners"][0]["locks"], &shown["owners"][1]["shortestTtlS"]),
            (&300.into(), &2.0.into())
        );
        assert_eq!(shown["owners"][0]["names"].as_array().unwrap().len(), NAMED);
        assert_eq!((&shown["locks"], &shown["waiters"]), (&303.into(), &314.into()));
    }
}
