//! Who calls: settled once for each call, before anything else is done for it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::AUTHORIZATION;
use http::{Extensions, HeaderMap, HeaderValue, Request, Response};
use tonic::body::Body;
use tower::Service;

use super::capacity::Usage;
use super::connection::Remote;
use super::status;
use super::verifications::{VerificationTurn, unproven};
use crate::auth::{Auth, AnonymousAccess, Policy, ProvenIdentity, PresentedCredentials, Unproven, Until};
use crate::error::Error;
use crate::metrics::ServerMetrics;
use crate::name::Identity;

/// What stands before a bearer token, in any case.
const SCHEME: &str = "bearer ";

/// Who makes a call, and by which policy it is judged to its end.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    /// Who it was proven to be.
    pub identity: Identity,
    /// What it is allowed; nothing: everything.
    pub policy: Option<Arc<Policy>>,
    /// Where it is.
    pub peer: Option<Remote>,
    /// Until when it is proven.
    until: Until,
    /// What all calls of its identity use together; nothing where it has proven none.
    pub usage: Option<Arc<Usage>>,
    /// What its header shows of who it is; never written anywhere.
    authorization: Option<HeaderValue>,
    /// What says who is who at this moment.
    auth: Auth,
}

impl Caller {
    /// The caller of a request that came through [`Authenticate`]. One that found another way may
    /// nothing.
    pub(super) fn of(extensions: &mut Extensions) -> Self {
        extensions.remove().unwrap_or_else(|| Self {
            identity: Identity::anonymous(),
            policy: Some(Arc::default()),
            peer: None,
            until: Until::default(),
            usage: None,
            authorization: None,
            auth: Auth::default(),
        })
    }

    /// The same caller by the policy of this moment, for what goes on long after its call began.
    ///
    /// # Errors
    /// When its proof has expired meanwhile, or is not accepted any more.
    pub(super) fn again(&self) -> Result<Self, Unproven> {
        match self.shown_again()? {
            None => Ok(self.clone()),
            Some((policy, PresentedCredentials::ProvenIdentity(proven) | PresentedCredentials::Known(proven))) => Ok(self.renewed(policy, proven)),
            Some((policy, PresentedCredentials::UnverifiedToken(signed))) => Ok(self.renewed(policy, signed.verify()?)),
        }
    }

    /// The same where many calls ask at once: signatures are verified in turn.
    ///
    /// # Errors
    /// As [`Self::again`].
    pub(super) async fn again_in_turn(&self) -> Result<Self, Unproven> {
        match self.shown_again()? {
            Some((policy, PresentedCredentials::UnverifiedToken(signed))) => Ok(self.renewed(policy, self.auth.verify(signed).await?)),
            _ => self.again(),
        }
    }

    /// What it shows under another policy; nothing while the policy is the same and the proof counts.
    fn shown_again(&self) -> Result<Option<(Arc<Policy>, PresentedCredentials)>, Unproven> {
        let Some(policy) = self.auth.policy() else {
            return Ok(None);
        };
        if self.policy.as_ref().is_some_and(|own| Arc::ptr_eq(own, &policy)) {
            return if self.until.is_over() {
                Err(Unproven::Expired)
            } else {
                Ok(None)
            };
        }
        let bearer = self.authorization.as_ref().map(bearer_of).transpose()?;
        let certificate = self.peer.as_ref().and_then(|peer| peer.certificate.as_ref());
        let shown = policy.shown(certificate, bearer)?;
        Ok(Some((policy, shown)))
    }

    fn renewed(&self, policy: Arc<Policy>, proven: ProvenIdentity) -> Self {
        Self {
            identity: proven.identity,
            until: proven.until,
            policy: Some(policy),
            ..self.clone()
        }
    }
}

/// Lets calls in to `inner` whose caller is proven, or need not be.
#[derive(Debug, Clone)]
pub(super) struct Authenticate<S> {
    inner: S,
    auth: Auth,
    figures: Option<ServerMetrics>,
}

impl<S> Authenticate<S> {
    /// Asks for proof as `auth` says, and counts those who have none where there are figures.
    pub(super) fn new(inner: S, auth: Auth, figures: Option<ServerMetrics>) -> Self {
        Self { inner, auth, figures }
    }

    /// What is known of the caller before its signature is verified.
    fn shown(&self, request: &Request<Body>) -> Result<CallerState, Error> {
        let peer = request.extensions().get::<Remote>().cloned();
        let mut caller = Caller {
            identity: Identity::anonymous(),
            policy: self.auth.policy(),
            peer,
            until: Until::default(),
            usage: None,
            authorization: None,
            auth: self.auth.clone(),
        };
        let Some(policy) = caller.policy.clone() else {
            return Ok(CallerState::Known(caller));
        };
        let mut authorization = request.headers().get(AUTHORIZATION).cloned();
        if let Some(shown) = &mut authorization {
            shown.set_sensitive(true);
        }
        caller.authorization = authorization;
        let certificate = caller.peer.as_ref().and_then(|peer| peer.certificate.as_ref());
        let shown = bearer(request.headers()).and_then(|bearer| policy.shown(certificate, bearer));
        let is_busy = caller.peer.as_ref().is_some_and(|peer| peer.verifications.is_busy());
        match shown {
            Ok(PresentedCredentials::ProvenIdentity(proven)) => Ok(CallerState::Known(caller.proven(proven)?)),
            Ok(PresentedCredentials::Known(proven)) if !is_busy => Ok(CallerState::Known(caller.proven(proven)?)),
            Ok(shown) => Ok(CallerState::Shows(caller, shown)),
            Err(_) if is_open(request, &caller) => Ok(CallerState::Known(caller)),
            Err(cause) => Err(unproven(cause)),
        }
    }
}

/// A caller, as far as it is known at once.
enum CallerState {
    /// Who it is.
    Known(Caller),
    /// It shows a token that is still to be verified, or comes behind another call that does.
    Shows(Caller, PresentedCredentials),
}

impl Caller {
    /// # Errors
    /// When its identity has too many connections.
    fn proven(mut self, proven: ProvenIdentity) -> Result<Self, Error> {
        let usage = self
            .peer
            .as_ref()
            .map(|peer| peer.proven(&proven.identity))
            .transpose()?;
        self.usage = usage.flatten();
        self.identity = proven.identity;
        self.until = proven.until;
        Ok(self)
    }
}

impl<S: Clone> Authenticate<S> {
    /// Makes a call once its caller's token is verified.
    fn verified<B>(&mut self, request: Request<Body>, caller: Caller, shown: PresentedCredentials) -> Verified<S::Future>
    where
        S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
        S::Future: Send + Unpin,
    {
        // The one that is ready goes with the call.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let verifications = caller.peer.as_ref().map(|peer| Arc::clone(&peer.verifications));
        let (auth, is_open) = (self.auth.clone(), is_open(&request, &caller));
        Box::pin(async move {
            let proven = verifications.unwrap_or_default().proven(auth, shown).await;
            let (caller, turn) = match proven {
                Ok((proven, turn)) => (caller.proven(proven)?, Some(turn)),
                Err(Error::Unauthenticated { .. }) if is_open => (caller, None),
                Err(error) => return Err(error),
            };
            Ok((inner.call(admitted(request, caller)), turn))
        })
    }
}

/// A call whose caller is being verified; the next one of the connection waits for its turn.
type Verified<F> = Pin<Box<dyn Future<Output = Result<(F, Option<VerificationTurn>), Error>> + Send>>;

/// A request that shows who its caller is to what is behind, and not how that was proven: nothing there may log
/// that or pass it on.
fn admitted(mut request: Request<Body>, caller: Caller) -> Request<Body> {
    request.headers_mut().remove(AUTHORIZATION);
    request.extensions_mut().insert(caller);
    request
}

/// Whether a call is for those too who are nobody.
fn is_open(request: &Request<Body>, caller: &Caller) -> bool {
    let policy = caller.policy.as_ref();
    policy.is_some_and(|policy| door(request.uri().path(), policy) == AnonymousAccess::Open)
}

/// Whether a method is for those too who are nobody.
fn door(path: &str, policy: &Policy) -> AnonymousAccess {
    if path.starts_with("/grpc.health.v1.Health/") {
        policy.health()
    } else if path.starts_with("/grpc.reflection.") {
        policy.reflection()
    } else {
        AnonymousAccess::Closed
    }
}

/// The bearer token of a call, where it has one.
fn bearer(headers: &HeaderMap) -> Result<Option<&[u8]>, Unproven> {
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    let Some(first) = shown.next() else { return Ok(None) };
    // Of two, nobody could say which one counts.
    if shown.next().is_some() {
        return Err(Unproven::Invalid);
    }
    bearer_of(first).map(Some)
}

fn bearer_of(header: &HeaderValue) -> Result<&[u8], Unproven> {
    let parts = header.as_bytes().split_at_checked(SCHEME.len());
    let (scheme, token) = parts.ok_or(Unproven::Invalid)?;
    let token = token.trim_ascii();
    if scheme.eq_ignore_ascii_case(SCHEME.as_bytes()) && !token.is_empty() {
        Ok(token)
    } else {
        Err(Unproven::Invalid)
    }
}

impl<S, B> Service<Request<Body>> for Authenticate<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + Unpin,
    B: Default,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = AuthenticateFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let step = match self.shown(&request) {
            Ok(CallerState::Known(caller)) => Stage::Called(self.inner.call(admitted(request, caller))),
            Ok(CallerState::Shows(caller, shown)) => Stage::Verified(self.verified(request, caller, shown)),
            Err(error) => Stage::Refused(error),
        };
        if let Stage::Refused(error) = &step {
            refused(self.figures.as_ref(), error);
        }
        AuthenticateFuture {
            step,
            figures: self.figures.clone(),
        }
    }
}

/// A call whose caller is looked at.
pub(super) struct AuthenticateFuture<F> {
    step: Stage<F>,
    figures: Option<ServerMetrics>,
}

/// How far it has come.
enum Stage<F> {
    /// Its caller is being verified.
    Verified(Verified<F>),
    /// It is under way.
    Called(F),
    /// It was not let in.
    Refused(Error),
}

impl<F, B, E> Future for AuthenticateFuture<F>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
    B: Default,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match &mut this.step {
                Stage::Verified(verified) => match ready!(verified.as_mut().poll(cx)) {
                    Ok((mut call, turn)) => {
                        // Begun before the next call of the connection has its turn: the order stays.
                        let polled = Pin::new(&mut call).poll(cx);
                        drop(turn);
                        this.step = Stage::Called(call);
                        return polled;
                    }
                    Err(error) => {
                        refused(this.figures.as_ref(), &error);
                        this.step = Stage::Refused(error);
                    }
                },
                Stage::Called(call) => return Pin::new(call).poll(cx),
                Stage::Refused(error) => return Poll::Ready(Ok(status::of(error.clone()).into_http())),
            }
        }
    }
}

/// Counts a caller that has not proven who it is.
fn refused(figures: Option<&ServerMetrics>, error: &Error) {
    if let (Some(figures), Error::Unauthenticated { cause }) = (figures, error) {
        figures.unauthenticated.count(cause.word());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let pairs = values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap()));
        pairs.collect()
    }

    #[test]
    fn a_caller_that_nobody_looked_at_may_nothing() {
        use crate::auth::Verb;
        use crate::auth::rules::Reach;
        let caller = Caller::of(&mut Extensions::new());
        let policy = caller.policy.expect("a policy");
        assert!(
            policy
                .check(&caller.identity, Verb::Read, "a", Reach::Names("b"))
                .is_err()
        );
    }

    #[test]
    fn one_bearer_token_is_read_and_nothing_else() {
        assert_eq!(bearer(&headers(&[])), Ok(None));
        for good in ["Bearer abc", "bearer abc", "BEARER   abc "] {
            assert_eq!(bearer(&headers(&[good])), Ok(Some(&b"abc"[..])), "{good:?}");
        }
        for bad in ["", "Bearer", "Bearer ", "Basic abc", "abc", "Bearerabc"] {
            assert_eq!(bearer(&headers(&[bad])), Err(Unproven::Invalid), "{bad:?}");
        }
        assert_eq!(bearer(&headers(&["Bearer a", "Bearer a"])), Err(Unproven::Invalid));
    }
}
