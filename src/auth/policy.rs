//! A policy: how callers are authenticated, and what each identity may do.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::authenticated_identity::{AuthenticatedIdentity, Until};
use super::bearer::{BearerHash, Bearers, hash};
use super::bearer_file::{self, BearerFileError};
use super::certificate::CertificateIdentity;
use super::jwt::{Jwt, JwtError, JwtSettings};
use super::presented_credentials::{PresentedCredentials, UnverifiedToken};
use super::rules::Rules;
use super::{AuthenticationFailure, Denied, Verb, rules};
use crate::name::Identity;

/// The maximum number of static tokens. Deployments with more callers should use JWTs.
const MAX_BEARERS: usize = 1000;

/// Whether health and reflection, which clients use before they authenticate, need authentication.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnonymousAccess {
    /// They do not.
    #[default]
    Open,
    /// They do.
    Closed,
}

/// The settings of a policy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicySettings {
    /// Whether a client certificate authenticates its caller.
    pub certificates: bool,
    /// Static tokens.
    pub bearers: Vec<BearerHash>,
    /// A file with more static tokens: one `name:hash` per line, or a comment after `#`.
    pub bearer_file: Option<PathBuf>,
    /// Accepted JWTs.
    pub jwt: Option<JwtSettings>,
    /// What each identity may do.
    pub rules: Rules,
    /// Access to the health service.
    pub health: AnonymousAccess,
    /// Access to reflection.
    pub reflection: AnonymousAccess,
}

impl PolicySettings {
    /// The files that the policy reads.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let keys = self.jwt.as_ref().map(|jwt| &jwt.jwks_file);
        self.bearer_file.iter().chain(keys)
    }
}

/// Why a policy cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file of static tokens.
    #[error(transparent)]
    BearerFile(#[from] BearerFileError),
    /// There are too many static tokens.
    #[error("there must be at most {MAX_BEARERS} static bearer tokens, not {found}")]
    TooMany {
        /// How many there are.
        found: usize,
    },
    /// The keys of JWTs.
    #[error(transparent)]
    Jwt(#[from] JwtError),
}

/// A policy with the content of its files. The default authenticates nobody and allows nothing.
#[derive(Debug, Default)]
pub struct Policy {
    certificates: bool,
    bearers: Arc<Bearers>,
    jwt: Option<Arc<Jwt>>,
    rules: Rules,
    health: AnonymousAccess,
    reflection: AnonymousAccess,
}

impl Policy {
    /// Reads the files.
    ///
    /// # Errors
    /// [`PolicyError`] for a file that cannot be used.
    pub fn open(settings: &PolicySettings) -> Result<Self, PolicyError> {
        let jwt = settings.jwt.as_ref().map(Jwt::open).transpose()?;
        let (bearers, mut errors) = bearers(settings)?;
        match errors.pop() {
            None => Ok(Self::of(settings, bearers.into(), jwt.map(Arc::new))),
            Some(last) => Err(errors.into_iter().next().unwrap_or(last)),
        }
    }

    /// Reads the files again and returns the new policy and what is wrong with the files. An entry that was removed
    /// from a file is dropped even if the rest of the file cannot be used. A file that cannot be read keeps its
    /// previous content.
    #[must_use]
    pub fn renewed(&self, settings: &PolicySettings) -> (Self, Vec<PolicyError>) {
        let mut errors = Vec::new();
        let bearers = match bearers(settings) {
            Ok((loaded, bad)) => {
                let is_within_limit = !bad.iter().any(|error| matches!(error, PolicyError::TooMany { .. }));
                errors.extend(bad);
                if is_within_limit {
                    loaded
                } else {
                    self.bearers.retained(&loaded)
                }
                .into()
            }
            Err(error) => {
                errors.push(error);
                Arc::clone(&self.bearers)
            }
        };
        let jwt = self.renewed_jwt(settings, &mut errors);
        (Self::of(settings, bearers, jwt), errors)
    }

    /// Keeps the keys, with the cache of verified tokens, if the file has not changed.
    fn renewed_jwt(&self, settings: &PolicySettings, errors: &mut Vec<PolicyError>) -> Option<Arc<Jwt>> {
        let settings = settings.jwt.as_ref()?;
        let Some(before) = &self.jwt else {
            let opened = Jwt::open(settings).map_err(|error| errors.push(error.into()));
            return opened.ok().map(Arc::new);
        };
        let (loaded, fault) = before.renewed(settings);
        errors.extend(fault.map(PolicyError::from));
        Some(loaded.map_or_else(|| Arc::clone(before), Arc::new))
    }

    fn of(settings: &PolicySettings, bearers: Arc<Bearers>, jwt: Option<Arc<Jwt>>) -> Self {
        Self {
            certificates: settings.certificates,
            bearers,
            jwt,
            rules: settings.rules.clone(),
            health: settings.health,
            reflection: settings.reflection,
        }
    }

    /// Access to the health service.
    pub fn health(&self) -> AnonymousAccess {
        self.health
    }

    /// Access to reflection.
    pub fn reflection(&self) -> AnonymousAccess {
        self.reflection
    }

    /// Authenticates a caller by its bearer token, or without one by its client certificate. A certificate does not
    /// replace a token that is not accepted.
    ///
    /// # Errors
    /// [`AuthenticationFailure`].
    pub fn identify(
        &self,
        certificate: Option<&CertificateIdentity>,
        bearer: Option<&[u8]>,
    ) -> Result<AuthenticatedIdentity, AuthenticationFailure> {
        match self.presented(certificate, bearer)? {
            PresentedCredentials::Verified(verified) | PresentedCredentials::Cached(verified) => Ok(verified),
            PresentedCredentials::Unverified(token) => token.verify(),
        }
    }

    /// Authenticates a caller without verifying a JWT signature, which takes a hundred times as long as the rest.
    ///
    /// # Errors
    /// [`AuthenticationFailure`].
    pub fn presented(
        &self,
        certificate: Option<&CertificateIdentity>,
        bearer: Option<&[u8]>,
    ) -> Result<PresentedCredentials, AuthenticationFailure> {
        let Some(token) = bearer else {
            let shown = certificate
                .filter(|_| self.certificates)
                .ok_or(AuthenticationFailure::Missing)?;
            let until = Until(Some(shown.until));
            if until.is_over() {
                return Err(AuthenticationFailure::Expired);
            }
            return Ok(PresentedCredentials::Verified(AuthenticatedIdentity {
                identity: shown.identity.clone(),
                until,
            }));
        };
        let hash = hash(token);
        if let Some(identity) = self.bearers.identity_of(&hash) {
            let until = Until::default();
            return Ok(PresentedCredentials::Verified(AuthenticatedIdentity {
                identity,
                until,
            }));
        }
        let jwt = self.jwt.as_ref().ok_or(AuthenticationFailure::Invalid)?;
        if let Some(cached) = jwt.remembered(&hash) {
            return cached.map(PresentedCredentials::Cached);
        }
        Ok(PresentedCredentials::Unverified(UnverifiedToken {
            token: jwt.check_claims(token)?,
            jwt: Arc::clone(jwt),
            hash,
        }))
    }

    /// Whether an identity may do something to these locks of a namespace.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn check(
        &self,
        identity: &Identity,
        verb: Verb,
        namespace: &str,
        locks: rules::LockScope<'_>,
    ) -> Result<(), Denied> {
        self.rules.check(identity, verb, namespace, locks)
    }

    /// Whether an identity may do anything in a namespace.
    pub fn opens(&self, identity: &Identity, namespace: &str) -> bool {
        self.rules.opens(identity, namespace)
    }
}

/// All usable static tokens, and what is wrong with the others.
fn bearers(settings: &PolicySettings) -> Result<(Bearers, Vec<PolicyError>), PolicyError> {
    let (mut bearers, mut errors) = (settings.bearers.clone(), Vec::new());
    if let Some(path) = &settings.bearer_file {
        let lines = bearer_file::read(path, &bearers)?;
        bearers.extend(lines.good);
        errors.extend(lines.bad.into_iter().map(PolicyError::from));
    }
    let found = bearers.len();
    if found > MAX_BEARERS {
        errors.push(PolicyError::TooMany { found });
    }
    Ok((Bearers::new(bearers), errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_tokens_the_known_ones_stay_and_removed_or_renamed_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bearers");
        let line = |name: &str, number: usize| format!("{name}:{number:064x}\n");
        let settings = PolicySettings {
            bearer_file: Some(path.clone()),
            ..PolicySettings::default()
        };
        let is_known = |policy: &Policy, number: usize| {
            let mut hash = [0; 32];
            hash[24..].copy_from_slice(&(number as u64).to_be_bytes());
            policy.bearers.identity_of(&hash).is_some()
        };
        let three = [line("stays", 1), line("goes", 2), line("renamed", 3)];
        std::fs::write(&path, three.concat()).unwrap();
        let policy = Policy::open(&settings).unwrap();
        let new: String = (10..10 + MAX_BEARERS).map(|number| line("new", number)).collect();
        std::fs::write(&path, line("stays", 1) + &line("other", 3) + &new).unwrap();
        let (policy, errors) = policy.renewed(&settings);
        let found = MAX_BEARERS + 2;
        assert!(matches!(errors[..], [PolicyError::TooMany { found: told }] if told == found));
        assert_eq!(
            [1, 2, 3, 10].map(|number| is_known(&policy, number)),
            [true, false, false, false]
        );
        assert!(Policy::open(&settings).is_err());
        // A file that cannot be read says nothing about what is gone.
        std::fs::remove_file(&path).unwrap();
        let (policy, errors) = policy.renewed(&settings);
        assert!(is_known(&policy, 1) && errors.len() == 1);
    }
}
