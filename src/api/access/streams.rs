//! The streams that keep leases: who may open them, and who sees them.

use std::sync::Arc;

use super::GuardedNamespaces;
use crate::api::authenticate::Caller;
use crate::api::capacity::UnsentAnswers;
use crate::api::open_streams::{ClientName, OpenStream, OpenStreams, StreamState};
use crate::api::proto::SessionKind;
use crate::auth::Verb;
use crate::auth::rules::LockScope;
use crate::error::Error;
use crate::locks::Locks;
use crate::name::Identity;

impl GuardedNamespaces {
    /// Checks that a caller may open a stream that keeps leases, counts and shows it. Each lease is checked by
    /// [`Self::lease`].
    pub(in crate::api) fn to_keep(
        &self,
        kind: SessionKind,
        caller: &Caller,
        answers: Option<&Arc<UnsentAnswers>>,
    ) -> Result<OpenStream, Error> {
        self.all(caller)?;
        let quota = self.quotas.stream(&caller.identity, None)?;
        Ok(self.streams.open(kind, caller, answers, quota))
    }

    /// Notes which client a stream is of, and counts it.
    pub(in crate::api) fn client_opened(&self, stream: &StreamState, client: ClientName) {
        let metrics = self.namespaces.metrics();
        let counted = metrics.map(|metrics| metrics.server().clients.opened(&client.name, &client.version));
        stream.client_opened(client, counted);
    }

    /// Checks that the caller may end its requests for a lock, and returns the namespace. As Release, that counts against no
    /// limit.
    pub(in crate::api) fn to_cancel(&self, caller: &Caller, namespace: &str, name: &str) -> Result<Locks, Error> {
        self.check(caller, Verb::Acquire, namespace, LockScope::Names(name))?;
        self.namespaces.get(namespace)
    }

    /// The open streams, and the identity whose streams the caller may see: an operator of all locks of all namespaces
    /// sees those of every identity.
    pub(in crate::api) fn to_list_streams<'a>(
        &self,
        caller: &'a Caller,
    ) -> Result<(&OpenStreams, Option<&'a Identity>), Error> {
        self.all(caller)?;
        let is_operator = caller.policy.as_ref().is_none_or(|policy| {
            let operates = |locks: &Locks| {
                let namespace = locks.namespace().as_str();
                policy.check(&caller.identity, Verb::Admin, namespace, LockScope::All)
            };
            self.namespaces.all().iter().all(|locks| operates(locks).is_ok())
        });
        Ok((&self.streams, (!is_operator).then_some(&caller.identity)))
    }
}
