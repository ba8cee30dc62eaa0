//! Checks the tables of encryption, authentication, authorization and quotas.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::error::ConfigError;
use super::file::{AuthSection, File, JwtSection, NamespaceSection, TlsSection};
use super::source::Source;
use super::words::{BearerText, Encrypted, PatternText};
use crate::auth::{JwtSettings, Pattern, PolicySettings, Rule, Rules};
use crate::quota::{Quota, QuotaSettings};
use crate::schema::Period;
use crate::tls::{ClientAuth, TlsSettings};

/// The checked table of encryption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TlsConfig {
    pub settings: TlsSettings,
    pub listeners: Encrypted,
}

/// Checks the table of encryption, if there is one.
pub(super) fn tls(file: &File, source: &Source) -> Result<Option<TlsConfig>, ConfigError> {
    let Some(section) = &file.tls else { return Ok(None) };
    let required = |path: &Option<PathBuf>, key: &str| {
        let missing = || source.refuse(&["tls", key], "must be the path of a file");
        path.clone().ok_or_else(missing)
    };
    if (section.client_auth == ClientAuth::None) != section.client_ca.is_none() {
        let problem = "must be given where client_auth is \"optional\" or \"required\", and only there";
        return Err(source.refuse(&["tls", "client_ca"], problem));
    }
    Ok(Some(TlsConfig {
        settings: TlsSettings {
            certificate: required(&section.certificate, "certificate")?,
            key: required(&section.key, "key")?,
            client_ca: section.client_ca.clone(),
            client_auth: section.client_auth,
            handshake_timeout: section.handshake_timeout.get(),
            handshake_limit: section.handshake_limit.get() as usize,
        },
        listeners: section.listeners,
    }))
}

/// Checks the table of authentication, if there is one.
pub(super) fn policy(file: &File, source: &Source) -> Result<Option<PolicySettings>, ConfigError> {
    let Some(section) = &file.auth else { return Ok(None) };
    let jwt = section.jwt.as_ref().map(|jwt| signed(jwt, source)).transpose()?;
    let requests_certificates = |tls: &TlsSection| tls.client_auth != ClientAuth::None;
    let certificates = section.certificates && file.tls.as_ref().is_some_and(requests_certificates);
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
        health: section.health,
        reflection: section.reflection,
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

/// Refuses a token with two names.
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

/// Checks the rules. Refuses a rule that allows nothing, or that names an unknown namespace.
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
            verbs: rule.verbs.clone(),
        });
    }
    Ok(Rules::new(all))
}

fn patterns(texts: &[PatternText]) -> Vec<Pattern> {
    texts.iter().map(|text| text.value.clone()).collect()
}

/// Checks the quotas of namespaces and identities.
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
