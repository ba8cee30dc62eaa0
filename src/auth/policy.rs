//! A policy: who is who, by what they show, and what each may do.

use std::path::PathBuf;
use std::sync::Arc;

use super::bearer::{BearerHash, Bearers, hash};
use super::certificate::Certified;
use super::clock;
use super::jwt::{Jwt, JwtError, JwtSettings};
use super::rules::Rules;
use super::{Denied, Unproven, Verb, rules};
use crate::name::Identity;

/// How many static tokens there may be: who has more callers than that has an issuer of signed ones.
const MAX_BEARERS: usize = 1000;

/// Who may ask for what every client needs before it is anybody: health, reflection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Door {
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
    pub health: Door,
    /// Who may ask for reflection.
    pub reflection: Door,
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
    /// The file of static tokens cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line of it is none. The line itself is not shown: it may be a secret.
    #[error("{}:{line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// Why.
        source: super::BadBearer,
    },
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
    health: Door,
    reflection: Door,
}

impl Policy {
    /// Reads the files.
    ///
    /// # Errors
    /// [`PolicyError`] names the file that is not what it should be.
    pub fn open(settings: &PolicySettings) -> Result<Self, PolicyError> {
        let jwt = settings.jwt.as_ref().map(Jwt::open).transpose()?;
        Ok(Self::of(settings, bearers(settings)?.into(), jwt.map(Arc::new)))
    }

    /// The same policy with what its files hold now, each by itself: one that is not what it should be counts as
    /// it was read before, so that it keeps nothing in force that another one takes away. Answers what is wrong
    /// with those.
    #[must_use]
    pub fn renewed(&self, settings: &PolicySettings) -> (Self, Vec<PolicyError>) {
        let mut wrong = Vec::new();
        let bearers = match bearers(settings) {
            Ok(read) => read.into(),
            Err(error) => {
                wrong.push(error);
                Arc::clone(&self.bearers)
            }
        };
        let jwt = match settings.jwt.as_ref().map(Jwt::open).transpose() {
            Ok(read) => read.map(Arc::new),
            Err(error) => {
                wrong.push(error.into());
                self.jwt.clone()
            }
        };
        (Self::of(settings, bearers, jwt), wrong)
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
    pub fn health(&self) -> Door {
        self.health
    }

    /// Who may ask for reflection.
    pub fn reflection(&self) -> Door {
        self.reflection
    }

    /// Who a caller is: by its bearer token, or else by the certificate of its connection. A token
    /// that is not accepted is not made good by a certificate.
    ///
    /// # Errors
    /// [`Unproven`].
    pub fn identify(&self, certificate: Option<&Certified>, bearer: Option<&[u8]>) -> Result<Identity, Unproven> {
        let Some(token) = bearer else {
            let shown = certificate.filter(|_| self.certificates).ok_or(Unproven::Missing)?;
            let is_over = clock::seconds() > shown.until;
            return if is_over {
                Err(Unproven::Expired)
            } else {
                Ok(shown.identity.clone())
            };
        };
        let hash = hash(token);
        if let Some(identity) = self.bearers.prove(&hash) {
            return Ok(identity);
        }
        match &self.jwt {
            Some(jwt) => jwt.prove(token, &hash),
            None => Err(Unproven::Invalid),
        }
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

/// All static tokens.
fn bearers(settings: &PolicySettings) -> Result<Bearers, PolicyError> {
    let mut bearers = settings.bearers.clone();
    if let Some(path) = &settings.bearer_file {
        bearers.extend(read(path)?);
    }
    if bearers.len() > MAX_BEARERS {
        return Err(PolicyError::TooMany { found: bearers.len() });
    }
    Ok(Bearers::new(bearers))
}

fn read(path: &PathBuf) -> Result<Vec<BearerHash>, PolicyError> {
    let text = std::fs::read_to_string(path).map_err(|source| PolicyError::Unreadable {
        path: path.clone(),
        source,
    })?;
    let lines = (1..).zip(text.lines().map(str::trim));
    let tokens = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let read = tokens.map(|(line, text)| {
        BearerHash::parse(text).map_err(|source| PolicyError::Line {
            path: path.clone(),
            line,
            source,
        })
    });
    read.collect()
}
