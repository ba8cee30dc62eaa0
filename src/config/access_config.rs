//! Encryption, authentication and limits: the values of their tables, and what the tables come to.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::file::{AuthSection, File, JwtSection, NamespaceSection, TlsSection};
use super::source::Source;
use super::value::{Bounded, Period};
use crate::api::ListenAddress;
use crate::auth::{BearerHash, AnonymousAccess, JwtSettings, Pattern, PolicySettings, Rule, Rules, Verb};
use crate::quota::{Quota, QuotaSettings};
use crate::tls::{ClientAuth, TlsSettings};

/// Whether clients show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// They are not asked for one.
    None,
    /// They may.
    Optional,
    /// They must.
    Required,
}

/// Which addresses are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encrypted {
    /// Those that other machines can reach.
    Remote,
    /// All but Unix sockets.
    Tcp,
    /// All.
    All,
}

impl Encrypted {
    /// Whether this address is one of them.
    pub(super) fn covers(self, address: &ListenAddress) -> bool {
        match self {
            Self::Remote => !address.is_local(),
            Self::Tcp => matches!(address, ListenAddress::Tcp { .. }),
            Self::All => true,
        }
    }
}

/// Who may ask for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnonymousAccessName {
    /// Everybody.
    Open,
    /// Whoever is authenticated.
    Closed,
}

impl From<AnonymousAccessName> for AnonymousAccess {
    fn from(word: AnonymousAccessName) -> Self {
        match word {
            AnonymousAccessName::Open => Self::Open,
            AnonymousAccessName::Closed => Self::Closed,
        }
    }
}

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerbName {
    /// Takes a lock, renews its lease, gives it back.
    Acquire,
    /// Looks at locks.
    Read,
    /// Takes locks away from others.
    Admin,
}

impl From<VerbName> for Verb {
    fn from(word: VerbName) -> Self {
        match word {
            VerbName::Acquire => Self::Acquire,
            VerbName::Read => Self::Read,
            VerbName::Admin => Self::Admin,
        }
    }
}

/// A text that was read as something, and is shown as it was written.
macro_rules! read_text {
    ($(#[doc = $doc:literal])+ $name:ident, $value:ty, $read:path, $bounds:literal) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name {
            text: String,
            value: $value,
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                let value = $read(&text).map_err(|problem| problem.to_string())?;
                Ok(Self { text, value })
            }
        }

        impl From<$name> for String {
            fn from(read: $name) -> Self {
                read.text
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.text)
            }
        }

        impl Bounded for $name {
            fn bounds() -> Option<String> {
                Some($bounds.to_owned())
            }
        }
    };
}

read_text!(
    /// A text, or the beginning of texts.
    PatternText, Pattern, Pattern::new, "a text that may end in \"*\", for all that begin so"
);
read_text!(
    /// A static token.
    BearerText, BearerHash, BearerHash::parse, "a name, a colon and 64 hexadecimal digits"
);

/// Encryption, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TlsConfig {
    pub settings: TlsSettings,
    pub listeners: Encrypted,
}

/// The table of encryption, where there is one.
pub(super) fn tls(file: &File, source: &Source) -> Result<Option<TlsConfig>, ConfigError> {
    let Some(section) = &file.tls else { return Ok(None) };
    let required = |path: &Option<PathBuf>, key: &str| {
        let missing = || source.refuse(&["tls", key], "must be the path of a file");
        path.clone().ok_or_else(missing)
    };
    let client_auth = match section.client_auth {
        ClientCertificates::None => ClientAuth::None,
        ClientCertificates::Optional => ClientAuth::Optional,
        ClientCertificates::Required => ClientAuth::Required,
    };
    if (client_auth == ClientAuth::None) != section.client_ca.is_none() {
        let problem = "must be given where client_auth is \"optional\" or \"required\", and only there";
        return Err(source.refuse(&["tls", "client_ca"], problem));
    }
    Ok(Some(TlsConfig {
        settings: TlsSettings {
            certificate: required(&section.certificate, "certificate")?,
            key: required(&section.key, "key")?,
            client_ca: section.client_ca.clone(),
            client_auth,
            handshake_timeout: section.handshake_timeout.get(),
            handshake_limit: section.handshake_limit.get() as usize,
        },
        listeners: section.listeners,
    }))
}

/// The table of authentication, where there is one.
pub(super) fn policy(file: &File, source: &Source) -> Result<Option<PolicySettings>, ConfigError> {
    let Some(section) = &file.auth else { return Ok(None) };
    let jwt = section.jwt.as_ref().map(|jwt| signed(jwt, source)).transpose()?;
    let asks = |tls: &TlsSection| tls.client_auth != ClientCertificates::None;
    let certificates = section.certificates && file.tls.as_ref().is_some_and(asks);
    if !certificates && jwt.is_none() && section.bearer_file.is_none() && section.bearer_hashes.is_empty() {
        let problem = "must have a way to prove who somebody is: bearer_hashes, bearer_file, jwt, or certificates with \
                       client_auth in [tls]";
        return Err(source.refuse(&["auth"], problem));
    }
    check_bearers(section, source)?;
    Ok(Some(PolicySettings {
        certificates,
        bearers: section.bearer_hashes.iter().map(|one| one.value.clone()).collect(),
        bearer_file: section.bearer_file.clone(),
        jwt,
        rules: rules(section, &file.namespaces, source)?,
        health: section.health.into(),
        reflection: section.reflection.into(),
    }))
}

fn signed(section: &JwtSection, source: &Source) -> Result<JwtSettings, ConfigError> {
    let refuse = |key: &str, problem: &str| source.refuse(&["auth", "jwt", key], problem);
    let keys = section.jwks_file.clone();
    if section.issuer.is_empty() {
        return Err(refuse("issuer", "must be given"));
    }
    if section.audiences.is_empty() {
        return Err(refuse("audiences", "must name at least one"));
    }
    Ok(JwtSettings {
        jwks_file: keys.ok_or_else(|| refuse("jwks_file", "must be the path of a file"))?,
        issuer: section.issuer.clone(),
        audiences: section.audiences.clone(),
        leeway: section.leeway.get(),
        token_type: section.token_type.clone(),
        max_age: section.max_age.map(Period::get),
    })
}

/// One token must not prove two names.
fn check_bearers(section: &AuthSection, source: &Source) -> Result<(), ConfigError> {
    let all = &section.bearer_hashes;
    for (number, bearer) in all.iter().enumerate() {
        let is_same = |other: &BearerText| other.value.has_hash_of(&bearer.value);
        if let Some(before) = all[..number].iter().position(is_same) {
            let problem = format!("must have a hash of its own, not that of bearer_hashes[{before}]");
            return Err(source.refuse(&["auth", "bearer_hashes", &format!("[{number}]")], problem));
        }
    }
    Ok(())
}

/// A rule that allows nothing is a mistake, and so is one for a namespace that is not there.
fn rules(
    section: &AuthSection,
    namespaces: &BTreeMap<String, NamespaceSection>,
    source: &Source,
) -> Result<Rules, ConfigError> {
    let mut all = Vec::new();
    for (number, rule) in section.rules.iter().enumerate() {
        let item = format!("[{number}]");
        let is_unknown = |text: &PatternText| !text.text.ends_with('*') && !namespaces.contains_key(&text.text);
        if let Some(at) = rule.namespaces.iter().position(is_unknown) {
            let problem = format!(
                "must be a namespace of this configuration, or end in \"*\", and {:?} is none",
                rule.namespaces[at].text
            );
            let key = ["auth", "rules", &item, "namespaces", &format!("[{at}]")];
            return Err(source.refuse(&key, problem));
        }
        let empty = [
            ("identities", rule.identities.is_empty()),
            ("namespaces", rule.namespaces.is_empty()),
            ("locks", rule.locks.is_empty()),
            ("verbs", rule.verbs.is_empty()),
        ];
        if let Some((key, _)) = empty.iter().find(|(_, is_empty)| *is_empty) {
            return Err(source.refuse(&["auth", "rules", &item, key], "must name at least one"));
        }
        all.push(Rule {
            identities: patterns(&rule.identities),
            namespaces: patterns(&rule.namespaces),
            locks: rule.locks.clone(),
            verbs: rule.verbs.iter().copied().map(Verb::from).collect(),
        });
    }
    Ok(Rules::new(all))
}

fn patterns(texts: &[PatternText]) -> Vec<Pattern> {
    texts.iter().map(|text| text.value.clone()).collect()
}

/// The limits of namespaces and identities.
pub(super) fn quotas(file: &File, source: &Source) -> Result<QuotaSettings, ConfigError> {
    let mut settings = QuotaSettings::default();
    for (name, section) in &file.namespaces {
        if section.rate_burst.is_some() && section.rate_limit.is_none() {
            return Err(source.refuse(&["namespaces", name, "rate_burst"], "must come with a rate_limit"));
        }
        let quota = section.quota();
        if quota != Quota::default() {
            settings.namespaces.insert(name.clone(), quota);
        }
    }
    let limits = file.auth.iter().flat_map(|auth| &auth.limits).enumerate();
    for (number, section) in limits {
        let refuse = |key: &str, problem| Err(source.refuse(&["auth", "limits", &format!("[{number}]"), key], problem));
        if section.identities.is_empty() {
            return refuse("identities", "must name at least one");
        }
        if section.rate_burst.is_some() && section.rate_limit.is_none() {
            return refuse("rate_burst", "must come with a rate_limit");
        }
        settings
            .identities
            .push((patterns(&section.identities), section.quota()));
    }
    Ok(settings)
}
