//! The tables of encryption, authentication, authorization and quotas.

use std::path::PathBuf;

use super::{QuotaCount, SECOND, YEAR, period_s, rate};
use crate::auth::{AnonymousAccess, Verb};
use crate::config::words::{BearerText, Encrypted, PatternText};
use crate::quota::Quota;
use crate::schema::{Count, Period, section};
use crate::tls::ClientAuth;

section! {
    /// Encryption of the connections to this server (TLS 1.2 and 1.3). The files are PEM.
    pub struct TlsSection {
        /// The server's certificate, with the intermediate certificates. Required.
        certificate: Option<PathBuf> = None,
        /// The key of that certificate. Required.
        key: Option<PathBuf> = None,
        /// The certificates of the authorities that may sign client certificates.
        client_ca: Option<PathBuf> = None,
        /// Whether clients present a certificate: "none" does not request one, "optional" accepts
        /// clients with a valid certificate and clients without one, "required" accepts only
        /// clients with a valid certificate.
        client_auth: ClientAuth = ClientAuth::None,
        /// Which of the addresses in listen are encrypted: "remote" for addresses that other
        /// machines can reach, "tcp" also for loopback addresses, "all" also for Unix sockets.
        listeners: Encrypted = Encrypted::Remote,
        /// How long a handshake may take.
        handshake_timeout: Period<100, { 60 * SECOND }> = period_s(5),
        /// How many handshakes may be in progress on one listen address. Beyond it, the oldest is
        /// aborted.
        handshake_limit: Count<1, 100_000> = Count::nearest(1_000),
    }
}

section! {
    /// Authentication and authorization. Without this table, callers are not authenticated, and
    /// everything is allowed. With it, a caller authenticates with a bearer token, or else with
    /// the certificate of its connection, and everything that no rule allows is denied.
    pub struct AuthSection {
        /// Whether a client's certificate authenticates it. The identity is uri: with the first
        /// URI, else dns: with the first DNS name, else cn: with the common name.
        certificates: bool = true,
        /// Bearer tokens as name:hash, where hash is the SHA-256 of the token in hexadecimal
        /// digits. The identity is token: with the name. Tokens should have at least 128 random
        /// bits.
        bearer_hashes: Vec<BearerText> = Vec::new(),
        /// A file with further bearer tokens in this format, one per line. Lines that begin with #
        /// are comments.
        bearer_file: Option<PathBuf> = None,
        /// Who may call the health service: "open" for everybody, "closed" for authenticated
        /// callers.
        health: AnonymousAccess = AnonymousAccess::Open,
        /// Who may call the reflection service: "open" or "closed", as for health.
        reflection: AnonymousAccess = AnonymousAccess::Closed,
    }
    tables {
        /// Signed tokens.
        jwt: Option<JwtSection>,
        /// The rules.
        rules: Vec<RuleSection>,
        /// The quotas of identities.
        limits: Vec<QuotaSection>,
    }
}

section! {
    /// Signed bearer tokens (JWT with RS256, ES256 or EdDSA). The identity is jwt: with the
    /// subject. A token must have sub, iss, aud and exp.
    pub struct JwtSection {
        /// The file with the keys that verify signatures, as a JSON Web Key Set. Required.
        jwks_file: Option<PathBuf> = None,
        /// The issuer. Required.
        issuer: String = String::new(),
        /// The accepted audiences. A token must have one of them. Required.
        audiences: Vec<String> = Vec::new(),
        /// How far the clocks of the issuer and of this server may differ.
        leeway: Period<0, { 600 * SECOND }> = period_s(30),
        /// The type (typ) that the header of a token must have, such as "at+jwt". Absent: any.
        token_type: Option<String> = None,
        /// The maximum age of a token, counted from its issue (iat), which it must then have.
        /// Absent: a token is valid until its exp.
        max_age: Option<Period<SECOND, YEAR>> = None,
    }
}

section! {
    /// A rule, which allows each of these identities to use each of these verbs in each of
    /// these namespaces. A call is allowed if at least one rule allows it.
    pub struct RuleSection {
        /// The identities, such as "token:ci" or "uri:spiffe://example.org/team-a/*".
        identities: Vec<PatternText> = Vec::new(),
        /// The namespaces, such as "jobs" or "team-a-*".
        namespaces: Vec<PatternText> = Vec::new(),
        /// The prefixes of the names of the locks; "" stands for all locks.
        locks: Vec<String> = vec![String::new()],
        /// The verbs: "acquire" (Acquire, AcquireAll, Renew, KeepAlive, UpdateMetadata, Release,
        /// ReleaseAll, Campaign, Proclaim, Resign), "read" (GetLock, ListLocks, WatchLock,
        /// CheckToken, GetLeader, Observe), "admin" (ForceRelease, Admit if locks has "", and
        /// ListSessions of others if locks has "" in all namespaces). Each command of a Session needs
        /// the verb of its call.
        verbs: Vec<Verb> = Vec::new(),
    }
}

section! {
    /// Limits for each of these identities separately, on this server. The first table that
    /// matches an identity applies. An absent key means no limit. Renew and Release are never
    /// refused.
    pub struct QuotaSection {
        /// The identities.
        identities: Vec<PatternText> = Vec::new(),
        /// How many calls per second, not counting Renew and Release. AcquireAll counts as one call
        /// for each lock, and a page of ListLocks for each hundred.
        rate_limit: Option<QuotaCount> = None,
        /// How many calls may arrive at once after a pause. Absent: as many as rate_limit.
        rate_burst: Option<QuotaCount> = None,
        /// How many leases at once. The server counts the leases that it granted and Acquires in
        /// progress, until it observes their end or their time has passed.
        lease_limit: Option<QuotaCount> = None,
        /// How many Acquires may wait.
        waiter_limit: Option<QuotaCount> = None,
        /// How many WatchLock, Observe, KeepAlive and Session streams may be open.
        stream_limit: Option<QuotaCount> = None,
    }
}

impl QuotaSection {
    /// The quota of each of the identities.
    pub fn quota(&self) -> Quota {
        Quota {
            rate: rate(self.rate_limit, self.rate_burst),
            leases: self.lease_limit.map(Count::get),
            waiters: self.waiter_limit.map(Count::get),
            streams: self.stream_limit.map(Count::get),
        }
    }
}
