//! Elections: who leads, and who wants to lead.

use std::future::ready;

use futures::stream::{BoxStream, StreamExt};

use super::{Acquire, Client, Error};
use crate::proto::{GetLeaderRequest, Leader, ObserveRequest, ObserveResponse, ProclaimRequest};

/// The metadata entry of a claim that is the value of a candidate.
pub const VALUE: &str = "value";

impl Client {
    /// Requests the leadership of an election, with the value that observers see. Nothing is sent until the returned
    /// request is awaited; its guard keeps the leadership.
    pub fn campaign(&self, namespace: &str, election: &str, candidate: &str, value: &str) -> Acquire {
        // A campaign is an Acquire of the exclusive lock of this name, so that it has all that an Acquire has.
        self.acquire(namespace, election, candidate).metadata(VALUE, value)
    }

    /// Replaces the value of a leader.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the lease does not lead any more.
    pub async fn proclaim(&self, lease_id: &str, value: &str) -> Result<(), Error> {
        let request = ProclaimRequest {
            lease_id: lease_id.to_owned(),
            value: value.to_owned(),
        };
        self.calls()?.call(request).await.map(drop)
    }

    /// The leader of an election, if there is one.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn leader(&self, namespace: &str, election: &str) -> Result<Option<Leader>, Error> {
        let request = GetLeaderRequest {
            namespace: namespace.to_owned(),
            election: election.to_owned(),
        };
        Ok(self.calls()?.call(request).await?.leader)
    }

    /// The leader of an election, then each change. Returns when the first message has arrived, or fails after 5 s
    /// without it. The stream never shows an older token after a newer one. It goes on over restarts of servers and stores
    /// of up to 60 s, at the next address where there are several, and ends with its first other error.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn observe(
        &self,
        namespace: &str,
        election: &str,
    ) -> Result<BoxStream<'static, Result<ObserveResponse, Error>>, Error> {
        let request = ObserveRequest {
            namespace: namespace.to_owned(),
            election: election.to_owned(),
        };
        let mut newest = 0;
        let mut last = None;
        let seen = self.calls()?.open_stream(request).await?;
        let seen = seen.filter(move |seen| {
            let shows = match seen {
                Ok(seen) => {
                    let token = seen.leader.as_ref().map_or(newest, |leader| leader.fencing_token);
                    // A stream that was opened again begins with the present leader, as its server knows it.
                    let shows = token >= newest && last.as_ref() != Some(seen);
                    if shows {
                        (newest, last) = (token, Some(seen.clone()));
                    }
                    shows
                }
                Err(_) => true,
            };
            ready(shows)
        });
        Ok(seen.boxed())
    }
}
