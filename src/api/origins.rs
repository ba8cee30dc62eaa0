//! The web pages that may call the service: those of the origins that the configuration names.
//!
//! A browser tells the origin of the page that makes a request. Without this check, a page of another site whose own name
//! resolves to this server's address could call it.

use std::sync::Arc;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;

use super::connect::{AnswerBody, refusal};

/// What a browser may send with a call, and for how many seconds it may remember that.
const PREFLIGHT: [(HeaderName, &str); 3] = [
    (ACCESS_CONTROL_ALLOW_METHODS, "POST"),
    (
        ACCESS_CONTROL_ALLOW_HEADERS,
        "authorization, connect-protocol-version, connect-timeout-ms, content-type, traceparent, tracestate, \
         x-request-id, x-user-agent",
    ),
    (ACCESS_CONTROL_MAX_AGE, "7200"),
];

/// The origins of web pages that may call the service, such as `https://app.example`.
#[derive(Debug, Clone, Default)]
pub(super) struct Origins(Arc<[String]>);

impl Origins {
    /// These origins.
    pub(super) fn new(origins: &[String]) -> Self {
        Self(origins.into())
    }

    /// The headers that the answer to a request has in addition; none for a client that is no web page.
    ///
    /// # Errors
    /// The answer to a page of another origin, or to the question of a browser before a call.
    pub(super) fn admit<R, B: Body>(
        &self,
        request: &Request<R>,
    ) -> Result<Option<HeaderMap>, Box<Response<AnswerBody<B>>>> {
        let Some(origin) = request.headers().get(ORIGIN) else {
            return Ok(None);
        };
        if !self.0.iter().any(|own| own.as_bytes() == origin.as_bytes()) {
            let problem = "this page's origin is not in cors_origins of the server's configuration";
            return Err(Box::new(refusal(StatusCode::FORBIDDEN, problem)));
        }
        let mut headers = HeaderMap::new();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
        headers.insert(VARY, HeaderValue::from_static("origin"));
        if request.method() != Method::OPTIONS || !request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            return Ok(Some(headers));
        }
        headers.extend(PREFLIGHT.map(|(name, value)| (name, HeaderValue::from_static(value))));
        let mut answer = Response::new(AnswerBody::Whole(None));
        *answer.status_mut() = StatusCode::NO_CONTENT;
        *answer.headers_mut() = headers;
        Err(Box::new(answer))
    }
}
