//! The tables of encryption, of authentication, and of what each identity may do.

use std::path::PathBuf;

use super::{QuotaCount, SECOND, YEAR, period_s, rate};
use crate::config::access_config::{BearerText, ClientCertificates, AnonymousAccessName, Encrypted, PatternText, VerbName};
use crate::config::section::section;
use crate::config::value::{Count, Period};
use crate::quota::Quota;

section! {
    /// Encryption of the connections to this server (TLS 1.2 and 1.3). The files are PEM.
    pub struct TlsSection {
        /// The server's certificate, with those between it and its authority. Must be given.
        certificate: Option<PathBuf> = None,
        /// The key of that certificate. Must be given.
        key: Option<PathBuf> = None,
        /// The authorities that may sign the certificates of clients.
        client_ca: Option<PathBuf> = None,
        /// Whether clients show a certificate: "none" does not ask, "optional" takes one that is good
        /// and those who show none, "required" turns those away too.
        client_auth: ClientCertificates = ClientCertificates::None,
        /// Which of the addresses in listen are encrypted: "remote" for those that other machines can
        /// reach, "tcp" for loopback addresses too, "all" for Unix sockets too.
        listeners: Encrypted = Encrypted::Remote,
        /// How long a handshake may take.
        handshake_timeout: Period<100, { 60 * SECOND }> = period_s(5),
        /// How many handshakes of one address may be under way; beyond it the oldest is given up.
        handshake_limit: Count<1, 100_000> = Count::nearest(1_000),
    }
}

section! {
    /// Who may do what. Without this table nobody is authenticated and everybody may do everything.
    /// With it a caller proves who it is by a bearer token, or else by the certificate of its
    /// connection, and what no rule allows is denied.
    pub struct AuthSection {
        /// Whether a client's certificate proves who it is: as uri:, dns: or cn: and its first URI,
        /// else its first DNS name, else its common name.
        certificates: bool = true,
        /// Bearer tokens as name:hash, the hash being the SHA-256 of the token in hexadecimal digits.
        /// They prove token:name. Make tokens of at least 128 random bits.
        bearer_hashes: Vec<BearerText> = Vec::new(),
        /// A file with more of them, one a line; a line that begins with # is a comment.
        bearer_file: Option<PathBuf> = None,
        /// Who may ask for health: "open" for everybody, "closed" for whoever is authenticated.
        health: AnonymousAccessName = AnonymousAccessName::Open,
        /// Who may ask for reflection.
        reflection: AnonymousAccessName = AnonymousAccessName::Closed,
    }
    tables {
        /// Signed tokens.
        jwt: Option<JwtSection>,
        /// What is allowed.
        rules: Vec<RuleSection>,
        /// How much of it.
        limits: Vec<QuotaSection>,
    }
}

section! {
    /// Signed bearer tokens (JWT with RS256, ES256 or EdDSA). They prove jwt: and their subject, and must
    /// have sub, iss, aud and exp.
    pub struct JwtSection {
        /// The file with the keys that sign, as a JSON Web Key Set. Must be given.
        jwks_file: Option<PathBuf> = None,
        /// The issuer. Must be given.
        issuer: String = String::new(),
        /// The audiences, of which a token must name one. Must be given.
        audiences: Vec<String> = Vec::new(),
        /// How far the clocks of the issuer and of this server may be apart.
        leeway: Period<0, { 600 * SECOND }> = period_s(30),
        /// The type (typ) that the header of a token must name, such as "at+jwt". Absent: any.
        token_type: Option<String> = None,
        /// How long after its issue (iat, which it must have then) a token counts at most. Absent: until its
        /// exp.
        max_age: Option<Period<SECOND, YEAR>> = None,
    }
}

section! {
    /// A rule: each of these identities may do each of these things in each of these namespaces. There
    /// may be several, and one that allows is enough.
    pub struct RuleSection {
        /// Who, such as "token:ci" or "uri:spiffe://example.org/team-a/*".
        identities: Vec<PatternText> = Vec::new(),
        /// In which namespaces, such as "jobs" or "team-a-*".
        namespaces: Vec<PatternText> = Vec::new(),
        /// To which locks: those whose names begin with one of these; "" stands for all.
        locks: Vec<String> = vec![String::new()],
        /// What: "acquire" (Acquire, Renew, Release), "read" (GetLock, ListLocks, WatchLock,
        /// CheckToken), "admin" (ForceRelease, and Admit where locks has "").
        verbs: Vec<VerbName> = Vec::new(),
    }
}

section! {
    /// Limits of each of these identities, for itself, on this server. The first table that is for an
    /// identity counts. Absent: no limit. Renew and Release are never refused.
    pub struct QuotaSection {
        /// Who.
        identities: Vec<PatternText> = Vec::new(),
        /// How many calls a second, but for Renew and Release.
        rate_limit: Option<QuotaCount> = None,
        /// How many of them may come at once after a rest; absent: as many as in a second.
        rate_burst: Option<QuotaCount> = None,
        /// How many leases at once. The server counts those that it granted, and Acquires under way,
        /// until it sees their end, or their time is over.
        lease_limit: Option<QuotaCount> = None,
        /// How many Acquires may wait.
        waiter_limit: Option<QuotaCount> = None,
        /// How many WatchLock streams may be open.
        stream_limit: Option<QuotaCount> = None,
    }
}

impl QuotaSection {
    /// How much each of the identities may do.
    pub fn quota(&self) -> Quota {
        Quota {
            rate: rate(self.rate_limit, self.rate_burst),
            leases: self.lease_limit.map(Count::get),
            waiters: self.waiter_limit.map(Count::get),
            streams: self.stream_limit.map(Count::get),
        }
    }
}
