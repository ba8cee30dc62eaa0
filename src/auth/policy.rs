//! A policy: who is who, by what they show, and what each may do.

use std::path::PathBuf;
use std::sync::Arc;

use super::bearer::{BearerHash, Bearers, hash};
use super::bearer_file::{self, BearerFileError};
use super::certificate::CertificateIdentity;
use super::jwt::{Jwt, JwtError, JwtSettings};
use super::proven::{ProvenIdentity, PresentedCredentials, UnverifiedToken, Until};
use super::rules::Rules;
use super::{Denied, Unproven, Verb, rules};
use crate::name::Identity;

/// How many static tokens there may be: who has more callers than that has an issuer of signed ones.
const MAX_BEARERS: usize = 1000;

/// Who may ask for what every client needs before it is anybody: health, reflection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AnonymousAccess {
    /// Everybody.
    #[default]
    Open,
    /// Whoever is authenticated.
    Closed,
}

/// What a policy is made of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicySettings {
    /// Whether a client's certificate proves who it is.
    pub certificates: bool,
    /// Static tokens.
    pub bearers: Vec<BearerHash>,
    /// A file with more of them: a line of `name:hash` each, or a comment after `#`.
    pub bearer_file: Option<PathBuf>,
    /// Signed tokens.
    pub jwt: Option<JwtSettings>,
    /// What each may do.
    pub rules: Rules,
    /// Who may ask for health.
    pub health: AnonymousAccess,
    /// Who may ask for reflection.
    pub reflection: AnonymousAccess,
}

impl PolicySettings {
    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let keys = self.jwt.as_ref().map(|jwt| &jwt.jwks_file);
        self.bearer_file.iter().chain(keys)
    }
}

/// Why a policy cannot be gone by.
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
    /// The keys of signed tokens.
    #[error(transparent)]
    Jwt(#[from] JwtError),
}

/// A policy, with all that its files hold. By default it knows nobody and allows nothing.
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
    /// [`PolicyError`] names the file that is not what it should be.
    pub fn open(settings: &PolicySettings) -> Result<Self, PolicyError> {
        let jwt = settings.jwt.as_ref().map(Jwt::open).transpose()?;
        let (bearers, mut bad) = bearers(settings)?;
        match bad.pop() {
            None => Ok(Self::of(settings, bearers.into(), jwt.map(Arc::new))),
            Some(last) => Err(bad.into_iter().next().unwrap_or(last)),
        }
    }

    /// The same policy with what its files hold now, each by itself. What is gone from a file counts no more, also
    /// where the rest of it is not what it should be; a file that cannot be read counts as it was read before.
    /// Answers what is wrong.
    #[must_use]
    pub fn renewed(&self, settings: &PolicySettings) -> (Self, Vec<PolicyError>) {
        let mut wrong = Vec::new();
        let bearers = match bearers(settings) {
            Ok((read, bad)) => {
                let is_whole = !bad.iter().any(|error| matches!(error, PolicyError::TooMany { .. }));
                wrong.extend(bad);
                if is_whole { read } else { self.bearers.retained(&read) }.into()
            }
            Err(error) => {
                wrong.push(error);
                Arc::clone(&self.bearers)
            }
        };
        let jwt = self.renewed_jwt(settings, &mut wrong);
        (Self::of(settings, bearers, jwt), wrong)
    }

    /// Keys whose file has not changed stay, with the tokens that they have verified.
    fn renewed_jwt(&self, settings: &PolicySettings, wrong: &mut Vec<PolicyError>) -> Option<Arc<Jwt>> {
        let settings = settings.jwt.as_ref()?;
        let Some(before) = &self.jwt else {
            let opened = Jwt::open(settings).map_err(|error| wrong.push(error.into()));
            return opened.ok().map(Arc::new);
        };
        let (read, fault) = before.renewed(settings);
        wrong.extend(fault.map(PolicyError::from));
        Some(read.map_or_else(|| Arc::clone(before), Arc::new))
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

    /// Who may ask for health.
    pub fn health(&self) -> AnonymousAccess {
        self.health
    }

    /// Who may ask for reflection.
    pub fn reflection(&self) -> AnonymousAccess {
        self.reflection
    }

    /// Who a caller is: by its bearer token, or else by the certificate of its connection. A token
    /// that is not accepted is not made good by a certificate.
    ///
    /// # Errors
    /// [`Unproven`].
    pub fn identify(&self, certificate: Option<&CertificateIdentity>, bearer: Option<&[u8]>) -> Result<ProvenIdentity, Unproven> {
        match self.shown(certificate, bearer)? {
            PresentedCredentials::ProvenIdentity(proven) | PresentedCredentials::Known(proven) => Ok(proven),
            PresentedCredentials::UnverifiedToken(signed) => signed.verify(),
        }
    }

    /// The same without the signature of a token, which takes a hundred times as long as the rest.
    ///
    /// # Errors
    /// [`Unproven`].
    pub fn shown(&self, certificate: Option<&CertificateIdentity>, bearer: Option<&[u8]>) -> Result<PresentedCredentials, Unproven> {
        let Some(token) = bearer else {
            let shown = certificate.filter(|_| self.certificates).ok_or(Unproven::Missing)?;
            let until = Until(Some(shown.until));
            if until.is_over() {
                return Err(Unproven::Expired);
            }
            return Ok(PresentedCredentials::ProvenIdentity(ProvenIdentity {
                identity: shown.identity.clone(),
                until,
            }));
        };
        let hash = hash(token);
        if let Some(identity) = self.bearers.prove(&hash) {
            let until = Until::default();
            return Ok(PresentedCredentials::ProvenIdentity(ProvenIdentity { identity, until }));
        }
        let jwt = self.jwt.as_ref().ok_or(Unproven::Invalid)?;
        if let Some(known) = jwt.remembered(&hash) {
            return known.map(PresentedCredentials::Known);
        }
        Ok(PresentedCredentials::UnverifiedToken(UnverifiedToken {
            token: jwt.judge(token)?,
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
        locks: rules::Reach<'_>,
    ) -> Result<(), Denied> {
        self.rules.check(identity, verb, namespace, locks)
    }

    /// Whether an identity may do anything in a namespace.
    pub fn opens(&self, identity: &Identity, namespace: &str) -> bool {
        self.rules.opens(identity, namespace)
    }
}

/// All static tokens that can be used, and what is wrong with others.
fn bearers(settings: &PolicySettings) -> Result<(Bearers, Vec<PolicyError>), PolicyError> {
    let (mut bearers, mut bad) = (settings.bearers.clone(), Vec::new());
    if let Some(path) = &settings.bearer_file {
        let lines = bearer_file::read(path, &bearers)?;
        bearers.extend(lines.good);
        bad.extend(lines.bad.into_iter().map(PolicyError::from));
    }
    let found = bearers.len();
    if found > MAX_BEARERS {
        bad.push(PolicyError::TooMany { found });
    }
    Ok((Bearers::new(bearers), bad))
}
