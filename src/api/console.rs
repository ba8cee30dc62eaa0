//! The console: a page for browsers, over HTTP/1.1.
//!
//! The page is a few static files, and makes calls as [`super::connect`] takes them on the same port, so that identities,
//! rules, limits, audit and metrics are those of all calls. The bearer token of a request is in its authorization header.
//! There are no cookies, so a page of another site cannot use the console's identity.

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;

use super::connect::{AnswerBody, refusal};
use super::serves::Hosts;

mod files;

/// Whether this program contains the console's page: the feature `console`.
pub const HAS_CONSOLE: bool = files::ARE_THERE;

/// What the page may load and do: its own files and calls, no inline code, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The headers of each response, which limit what the page can do.
const HEADERS: [(HeaderName, &str); 8] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=()",
    ),
];

/// The headers that the answer to a call of the page has in addition. The server is addressed as one of `hosts`.
///
/// # Errors
/// The answer to a request that is no call of the page: one of its files, or a refusal.
pub(super) fn admit<R, B: Body>(
    hosts: &Hosts,
    request: &Request<R>,
) -> Result<HeaderMap, Box<Response<AnswerBody<B>>>> {
    let mut answer = match not_a_call(hosts, request) {
        None => return Ok(headers().collect()),
        Some(answer) => answer,
    };
    answer.headers_mut().extend(headers());
    Err(Box::new(answer))
}

fn headers() -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    HEADERS
        .into_iter()
        .map(|(name, value)| (name, HeaderValue::from_static(value)))
}

fn not_a_call<R, B: Body>(hosts: &Hosts, request: &Request<R>) -> Option<Response<AnswerBody<B>>> {
    let Some(host) = the_header(request.headers(), HOST) else {
        return Some(refusal(StatusCode::BAD_REQUEST, "one Host header is required"));
    };
    if !hosts.include(host) {
        let problem = "the console is not served under this name: use an IP address, localhost or console_listen";
        return Some(refusal(StatusCode::MISDIRECTED_REQUEST, problem));
    }
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    match files::at(request.uri().path()) {
        Some(file) if reads => {
            let mut answer = Response::new(AnswerBody::from(Bytes::from_static(file.content)));
            let content_type = HeaderValue::from_static(file.content_type);
            answer.headers_mut().insert(CONTENT_TYPE, content_type);
            Some(answer)
        }
        Some(_) => {
            let mut answer = refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
            answer
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            Some(answer)
        }
        None if reads => Some(refusal(StatusCode::NOT_FOUND, "there is no such page")),
        None if !is_of_same_origin(request.headers()) => Some(refusal(
            StatusCode::FORBIDDEN,
            "only the console's own page may call it",
        )),
        None => None,
    }
}

/// The value of a header that is present once.
fn the_header(headers: &HeaderMap, name: impl http::header::AsHeaderName) -> Option<&str> {
    let mut all = headers.get_all(name).iter();
    let only = all.next()?;
    all.next().is_none().then(|| only.to_str().ok()).flatten()
}

/// Whether a request is from a page of this server, or from no page at all.
fn is_of_same_origin(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        return false;
    }
    if !headers.contains_key(ORIGIN) {
        return true;
    }
    let authority = the_header(headers, ORIGIN).and_then(|origin| origin.split_once("://"));
    authority.is_some_and(|(_, authority)| the_header(headers, HOST) == Some(authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_pages_of_the_same_origin_may_call() {
        let host = ("host", "localhost:50052");
        for allowed in [
            &[host][..],
            &[host, ("origin", "http://localhost:50052")],
            &[host, ("sec-fetch-site", "same-origin")],
        ] {
            assert!(is_of_same_origin(&headers(allowed)), "{allowed:?}");
        }
        for refused in [
            &[host, ("origin", "http://localhost:50053")][..],
            &[host, ("origin", "null")],
            &[host, ("origin", "http://evil.example")],
            &[
                host,
                ("origin", "http://localhost:50052"),
                ("origin", "http://evil.example"),
            ],
            &[host, ("sec-fetch-site", "cross-site")],
            &[
                host,
                ("sec-fetch-site", "same-site"),
                ("origin", "http://localhost:50052"),
            ],
        ] {
            assert!(!is_of_same_origin(&headers(refused)), "{refused:?}");
        }
    }
}
