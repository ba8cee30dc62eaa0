//! Determines the caller of each call, once and before anything else.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{Extensions, HeaderMap, HeaderValue, Request};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;

use super::capacity::Usage;
use super::connection::Remote;
use super::first_frame::wait_for_first_frame;
use super::peer::Peer;
use super::request_log::{CallName, Subject};
use super::verifications::{VerificationTurn, unauthenticated};
use crate::auth::{
    AnonymousAccess, Auth, AuthenticatedIdentity, AuthenticationFailure, Policy, PresentedCredentials, Until,
};
use crate::error::Error;
use crate::locks::{Acquire, Applicant, logs_grants};
use crate::metrics::ServerMetrics;
use crate::name::Identity;
use crate::rpc::Method;

/// The prefix of a bearer token; its case is ignored.
const SCHEME: &str = "bearer ";

/// The caller of a call, and the policy that applies to the call until its end.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    /// The authenticated identity.
    pub identity: Identity,
    /// The policy; absent if everything is allowed.
    pub policy: Option<Arc<Policy>>,
    /// Its connection.
    pub peer: Option<Remote>,
    /// The id of its call, or of its stream, in the log.
    pub call: Option<CallName>,
    /// When its credentials expire.
    until: Until,
    /// The resource use of all calls of its identity; absent for an unauthenticated caller.
    pub usage: Option<Arc<Usage>>,
    /// The authorization header; never logged or passed on.
    authorization: Option<HeaderValue>,
    /// The current authentication settings.
    auth: Auth,
}

impl Caller {
    /// The caller of a request that passed [`Authentication`]. A request that bypassed it gets a
    /// caller without permissions.
    pub(super) fn of(extensions: &mut Extensions) -> Self {
        extensions.remove().unwrap_or_else(|| Self {
            identity: Identity::anonymous(),
            policy: Some(Arc::default()),
            peer: None,
            call: None,
            until: Until::default(),
            usage: None,
            authorization: None,
            auth: Auth::default(),
        })
    }

    /// The address of the caller, for the audit log.
    pub(super) fn peer(&self) -> Option<Peer> {
        self.peer.as_ref().map(|remote| remote.peer)
    }

    /// Notes what the call that is being polled is about, for its line in the log.
    pub(super) fn note_subject(&self, namespace: Option<&str>, lock: Option<&str>) {
        Subject::note((&self.identity, self.peer()), namespace, lock);
    }

    /// Who asks for this lock, if grants are logged.
    pub(super) fn applicant(&self, request: &Acquire) -> Option<Box<Applicant>> {
        let applicant = || Applicant {
            lock: request.lock.clone(),
            owner: request.owner.clone(),
            identity: request.identity.clone(),
            peer: self.peer().map(|peer| peer.to_string()),
            request_id: self.call.as_ref().map(ToString::to_string),
        };
        logs_grants().then(|| Box::new(applicant()))
    }

    /// Cancelled when the calls of its connection have to end; absent if they end with the server only.
    pub(super) fn ending(&self) -> Option<&CancellationToken> {
        self.peer.as_ref()?.ending.as_ref()
    }

    /// Cancelled when the server ends the waits of the connection; absent if they end with the server only.
    pub(super) fn draining(&self) -> Option<&CancellationToken> {
        self.peer.as_ref()?.draining.as_ref()
    }

    /// The same caller under the current policy, for calls that outlast a change of the policy. Few signatures are
    /// verified at once, because many calls may ask at the same time.
    ///
    /// # Errors
    /// When its credentials have expired, or are not accepted any more.
    pub(super) async fn reauthenticate(&self) -> Result<Self, AuthenticationFailure> {
        match self.changed_credentials()? {
            None => Ok(self.clone()),
            Some((policy, PresentedCredentials::Verified(verified) | PresentedCredentials::Cached(verified))) => {
                Ok(self.renewed(policy, verified))
            }
            Some((policy, PresentedCredentials::Unverified(signed))) => {
                Ok(self.renewed(policy, self.auth.verify(signed).await?))
            }
        }
    }

    /// Ready when another policy than the caller's is in force.
    pub(super) async fn until_policy_is_replaced(&self) {
        self.auth.until_replaced(self.policy.as_ref()).await;
    }

    /// The current policy and the credentials under it; `None` if the policy is unchanged and the
    /// credentials are still valid.
    fn changed_credentials(&self) -> Result<Option<(Arc<Policy>, PresentedCredentials)>, AuthenticationFailure> {
        let Some(policy) = self.auth.policy() else {
            return Ok(None);
        };
        if self.policy.as_ref().is_some_and(|own| Arc::ptr_eq(own, &policy)) {
            return if self.until.is_over() {
                Err(AuthenticationFailure::Expired)
            } else {
                Ok(None)
            };
        }
        let bearer = self.authorization.as_ref().map(bearer_of).transpose()?;
        let certificate = self.peer.as_ref().and_then(|peer| peer.certificate.as_ref());
        let presented = policy.presented(certificate, bearer)?;
        Ok(Some((policy, presented)))
    }

    fn renewed(&self, policy: Arc<Policy>, verified: AuthenticatedIdentity) -> Self {
        Self {
            identity: verified.identity,
            until: verified.until,
            policy: Some(policy),
            ..self.clone()
        }
    }
}

/// Determines callers.
#[derive(Debug, Clone)]
pub(super) struct Authentication {
    auth: Auth,
    metrics: Option<ServerMetrics>,
}

impl Authentication {
    /// Authenticates callers by `auth`, and counts refused ones if there are metrics.
    pub(super) fn new(auth: Auth, metrics: Option<ServerMetrics>) -> Self {
        Self { auth, metrics }
    }

    /// The state of the caller before signatures are verified.
    ///
    /// # Errors
    /// UNAUTHENTICATED, or OVERLOADED when its identity has too many connections.
    pub(super) fn caller_state(&self, request: &Request<Body>) -> Result<CallerState, Error> {
        self.unverified(request).inspect_err(|error| self.refused(error))
    }

    /// The request of a caller whose token is valid, and the turn of its connection.
    ///
    /// # Errors
    /// As [`Self::caller_state`].
    pub(super) async fn verified(
        self,
        mut request: Request<Body>,
        caller: Caller,
        presented: PresentedCredentials,
    ) -> Result<(Request<Body>, Option<VerificationTurn>), Error> {
        let verifications = caller.peer.as_ref().map(|peer| Arc::clone(&peer.verifications));
        let allows_anonymous = allows_anonymous(&request, &caller);
        let message = async {
            // The client of a stream may wait for the server's first message.
            if !Method::at(request.uri().path()).is_some_and(|method| method.takes_stream) {
                wait_for_first_frame(&mut request).await;
            }
        };
        let verifications = verifications.unwrap_or_default();
        let verified = verifications.authenticate(self.auth.clone(), presented, message).await;
        let verified = match verified {
            Ok((verified, turn)) => caller.authenticated(verified).map(|caller| (caller, Some(turn))),
            Err(Error::Unauthenticated { .. }) if allows_anonymous => Ok((caller, None)),
            Err(error) => Err(error),
        };
        let (caller, turn) = verified.inspect_err(|error| self.refused(error))?;
        Ok((admitted(request, caller), turn))
    }

    /// Counts a caller that is not authenticated.
    fn refused(&self, error: &Error) {
        if let (Some(metrics), Error::Unauthenticated { cause }) = (&self.metrics, error) {
            metrics.unauthenticated.count(cause.as_str());
        }
    }

    fn unverified(&self, request: &Request<Body>) -> Result<CallerState, Error> {
        let peer = request.extensions().get::<Remote>().cloned();
        let mut caller = Caller {
            identity: Identity::anonymous(),
            policy: self.auth.policy(),
            peer,
            call: request.extensions().get().cloned(),
            until: Until::default(),
            usage: None,
            authorization: None,
            auth: self.auth.clone(),
        };
        let Some(policy) = caller.policy.clone() else {
            return Ok(CallerState::Known(caller));
        };
        let mut authorization = request.headers().get(AUTHORIZATION).cloned();
        if let Some(header) = &mut authorization {
            header.set_sensitive(true);
        }
        caller.authorization = authorization;
        let certificate = caller.peer.as_ref().and_then(|peer| peer.certificate.as_ref());
        let presented = bearer(request.headers()).and_then(|bearer| policy.presented(certificate, bearer));
        let is_busy = caller.peer.as_ref().is_some_and(|peer| peer.verifications.is_busy());
        match presented {
            Ok(PresentedCredentials::Verified(verified)) => Ok(CallerState::Known(caller.authenticated(verified)?)),
            Ok(PresentedCredentials::Cached(verified)) if !is_busy => {
                Ok(CallerState::Known(caller.authenticated(verified)?))
            }
            Ok(presented) => Ok(CallerState::Unverified(caller, presented)),
            Err(_) if allows_anonymous(request, &caller) => Ok(CallerState::Known(caller)),
            Err(cause) => Err(unauthenticated(cause)),
        }
    }
}

/// The state of a caller before signatures are verified.
pub(super) enum CallerState {
    /// Its identity is known.
    Known(Caller),
    /// Its token must still be verified, or another call of its connection is being verified first.
    Unverified(Caller, PresentedCredentials),
}

impl Caller {
    /// # Errors
    /// When its identity has too many connections.
    fn authenticated(mut self, verified: AuthenticatedIdentity) -> Result<Self, Error> {
        let usage = self
            .peer
            .as_ref()
            .map(|peer| peer.authenticated(&verified.identity))
            .transpose()?;
        self.usage = usage.flatten();
        self.identity = verified.identity;
        self.until = verified.until;
        Ok(self)
    }
}

/// A request with its caller and without the authorization header, so that inner layers cannot log or
/// forward the credentials.
pub(super) fn admitted(mut request: Request<Body>, caller: Caller) -> Request<Body> {
    request.headers_mut().remove(AUTHORIZATION);
    request.extensions_mut().insert(caller);
    request
}

/// Whether a call is allowed without authentication.
fn allows_anonymous(request: &Request<Body>, caller: &Caller) -> bool {
    let policy = caller.policy.as_ref();
    policy.is_some_and(|policy| anonymous_access(request.uri().path(), policy) == AnonymousAccess::Open)
}

/// Whether a method is allowed without authentication.
fn anonymous_access(path: &str, policy: &Policy) -> AnonymousAccess {
    if path.starts_with("/grpc.health.v1.Health/") {
        policy.health()
    } else if path.starts_with("/grpc.reflection.") {
        policy.reflection()
    } else {
        AnonymousAccess::Closed
    }
}

/// The bearer token of a call, if there is one.
fn bearer(headers: &HeaderMap) -> Result<Option<&[u8]>, AuthenticationFailure> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(first) = values.next() else { return Ok(None) };
    // With two tokens it would be ambiguous which one counts.
    if values.next().is_some() {
        return Err(AuthenticationFailure::Invalid);
    }
    bearer_of(first).map(Some)
}

fn bearer_of(header: &HeaderValue) -> Result<&[u8], AuthenticationFailure> {
    let parts = header.as_bytes().split_at_checked(SCHEME.len());
    let (scheme, token) = parts.ok_or(AuthenticationFailure::Invalid)?;
    let token = token.trim_ascii();
    if scheme.eq_ignore_ascii_case(SCHEME.as_bytes()) && !token.is_empty() {
        Ok(token)
    } else {
        Err(AuthenticationFailure::Invalid)
    }
}

#[cfg(test)]
mod tests;
