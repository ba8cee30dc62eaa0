//! Who calls: settled once for each call, before anything else is done for it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::AUTHORIZATION;
use http::{Extensions, HeaderMap, HeaderValue, Request, Response};
use tonic::body::Body;
use tower::Service;

use super::capacity::Usage;
use super::connection::Remote;
use super::status;
use crate::auth::{Auth, Door, Policy, Unproven};
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
        let Some(policy) = self.auth.policy() else {
            return Ok(self.clone());
        };
        let bearer = self.authorization.as_ref().map(bearer_of).transpose()?;
        let certificate = self.peer.as_ref().and_then(|peer| peer.certificate.as_ref());
        Ok(Self {
            identity: policy.identify(certificate, bearer)?,
            policy: Some(policy),
            ..self.clone()
        })
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

    fn caller(&self, request: &Request<Body>) -> Result<Caller, Error> {
        let peer = request.extensions().get::<Remote>().cloned();
        let Some(policy) = self.auth.policy() else {
            return Ok(Caller {
                identity: Identity::anonymous(),
                policy: None,
                peer,
                usage: None,
                authorization: None,
                auth: self.auth.clone(),
            });
        };
        let certificate = peer.as_ref().and_then(|peer| peer.certificate.as_ref());
        let proven = bearer(request.headers()).and_then(|bearer| policy.identify(certificate, bearer));
        let (identity, usage) = match proven {
            Ok(identity) => {
                let usage = peer.as_ref().map(|peer| peer.proven(&identity)).transpose()?;
                (identity, usage.flatten())
            }
            Err(_) if door(request.uri().path(), &policy) == Door::Open => (Identity::anonymous(), None),
            Err(cause) => return Err(Error::Unauthenticated { cause }),
        };
        let mut authorization = request.headers().get(AUTHORIZATION).cloned();
        if let Some(shown) = &mut authorization {
            shown.set_sensitive(true);
        }
        Ok(Caller {
            identity,
            policy: Some(policy),
            peer,
            usage,
            authorization,
            auth: self.auth.clone(),
        })
    }
}

/// Whether a method is for those too who are nobody.
fn door(path: &str, policy: &Policy) -> Door {
    if path.starts_with("/grpc.health.v1.Health/") {
        policy.health()
    } else if path.starts_with("/grpc.reflection.") {
        policy.reflection()
    } else {
        Door::Closed
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
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Unpin,
    B: Default,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = AuthenticateFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.caller(&request) {
            Ok(caller) => {
                // Nothing behind this may log or pass on what proves a caller.
                request.headers_mut().remove(AUTHORIZATION);
                request.extensions_mut().insert(caller);
                AuthenticateFuture::Known(self.inner.call(request))
            }
            Err(refused) => {
                if let (Some(figures), Error::Unauthenticated { cause }) = (&self.figures, &refused) {
                    figures.unauthenticated.count(cause.word());
                }
                AuthenticateFuture::Refused(refused)
            }
        }
    }
}

/// A call whose caller was looked at.
#[derive(Debug)]
pub(super) enum AuthenticateFuture<F> {
    /// It is under way.
    Known(F),
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
        match self.get_mut() {
            Self::Known(call) => Pin::new(call).poll(cx),
            Self::Refused(refused) => Poll::Ready(Ok(status::of(refused.clone()).into_http())),
        }
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
