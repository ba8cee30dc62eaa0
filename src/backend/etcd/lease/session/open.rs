//! The begin of a session, and of each of its connections.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp};

use super::keep_alive::{KeepAliveChannel, keep_alive_on};
use super::{LATER, Session, SessionEpoch};
use crate::backend::clock::{is_usable, micros, wall};
use crate::backend::etcd::cluster::checks::Condition;
use crate::backend::etcd::cluster::{Failure, failure};
use crate::backend::etcd::lease::base::Base;

impl Session {
    pub(super) async fn open(&self) -> Result<(SessionEpoch, KeepAliveChannel), Failure> {
        let connection = self.connection();
        let condition = Condition::of(&self.link, &self.keys.base()).await?;
        condition.tell();
        self.set_full(condition.full);
        self.has_space()?;
        let lease = self.leases.fresh(self.ttl).await?.id;
        let opened = self.open_on(lease, connection).await;
        if opened.is_err() {
            // If that fails, it expires.
            let leases = Arc::clone(&self.leases);
            tokio::spawn(async move { leases.revoke(lease).await });
        }
        opened
    }

    /// Opens a session on a new lease. Before it serves, the read of the base verifies that there is a quorum, and the
    /// write of the session's key that this account may write.
    async fn open_on(&self, session: i64, connection: u64) -> Result<(SessionEpoch, KeepAliveChannel), Failure> {
        let (stream, base) = self.connect(session).await?.ok_or(Failure::LeaseGone)?;
        let put = TxnOp::put(
            self.keys.session(session),
            "1",
            Some(PutOptions::new().with_lease(session)),
        );
        self.link.txn(Txn::new().and_then([put])).await?;
        let epoch = SessionEpoch {
            session,
            base,
            connection,
        };
        Ok((epoch, stream))
    }

    /// Opens a stream of keep-alives, and then establishes the token base: so the stream breaks if the connection does
    /// after the base was read. None if the session's lease is dead.
    ///
    /// The store behind a new connection may have been restored from a snapshot. The pooled leases and the free key
    /// suffixes are discarded, because each saves only a round trip.
    pub(super) async fn connect(&self, session: i64) -> Result<Option<(KeepAliveChannel, u64)>, Failure> {
        let member = self.link.current();
        let mut client = self.link.streaming().await?;
        let mut stream = match client.lease_keep_alive(session).await {
            Ok(stream) => stream,
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => return Ok(None),
            Err(error) => return Err(failure(&error)),
        };
        (self.abandon)();
        let base = self.establish_token_base().await?;
        // It is answered if the stream has not broken meanwhile.
        if !keep_alive_on(&mut stream).await? {
            return Ok(None);
        }
        match self.link.current() == member {
            true => Ok(Some((stream, base))),
            false => Err(Failure::Unavailable("etcd: calls go to another member now".into())),
        }
    }

    /// Makes sure, before the first grant over a connection, that new tokens are greater than all earlier ones, even if
    /// the store was restored from an old snapshot meanwhile.
    pub(super) async fn establish_token_base(&self) -> Result<u64, Failure> {
        loop {
            let highest = self.link.revision();
            let read = self.link.get_whatever(self.keys.base(), GetOptions::new()).await?;
            let revision = read.header().map_or(0, |header| header.revision());
            if revision < highest {
                tracing::warn!(
                    revision,
                    highest,
                    "etcd returned an older revision: it was restored from a snapshot"
                );
                self.link.forget();
                // The snapshot may have restored keys on these leases. The keep-alive task ends the session.
                (self.abandon)();
                self.state.send_modify(|state| state.epoch = None);
            }
            let kv = read.kvs().first();
            let now = Base::read(kv);
            let base = self.wanted_base(now, revision.unsigned_abs())?;
            if now == Base::Open(base) {
                return Ok(base);
            }
            let modified = kv.map_or(0, KeyValue::mod_revision);
            let when = [Compare::mod_revision(self.keys.base(), CompareOp::Equal, modified)];
            let then = [TxnOp::put(self.keys.base(), base.to_string(), None)];
            if self.link.txn(Txn::new().when(when).and_then(then)).await?.succeeded() {
                return Ok(base);
            }
        }
    }

    /// The base that makes all new tokens greater than all earlier ones, as far as the wall clock tells where the store
    /// was restored from a snapshot.
    fn wanted_base(&self, now: Base, revision: u64) -> Result<u64, Failure> {
        let now = now.open().ok_or(Failure::Unavailable(LATER.into()))?;
        let highest = if is_usable(now, revision) { now } else { 0 };
        let last = if highest > 0 { highest + revision } else { 0 };
        let floor = self.clock.floor(micros(wall()), last);
        let floor = floor.map_err(|wrong| Failure::Unavailable(format!("etcd: {wrong}")))?;
        Ok(highest.max(floor.unwrap_or(0).saturating_sub(revision)))
    }
}
