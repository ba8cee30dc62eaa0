//! The credentials of a client, and the CA certificates that it trusts. They are files, and are read again when they
//! may have changed: certificates for each new connection, the bearer token every 10 s.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{ClientTlsConfig, Endpoint, Identity};

use super::Address;
use super::error::{Error, innermost};
use super::trust::Trusted;
use crate::clock;

/// The age at which a bearer token is read again.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The key of the metadata with a bearer token.
pub(super) const AUTHORIZATION: &str = "authorization";

/// A bearer token, as it is sent.
pub(super) type BearerToken = MetadataValue<Ascii>;

/// The files with a client's credentials and trusted CA certificates. Clones share what was read.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    authorities: Option<PathBuf>,
    own: Option<(PathBuf, PathBuf)>,
    bearer: Option<Arc<Bearer>>,
}

/// A file with a bearer token, and the last token read.
struct Bearer {
    path: PathBuf,
    /// Not locked while the file is read.
    read: Mutex<Option<Read>>,
}

/// A bearer token, and when it was read.
#[derive(Clone)]
struct Read {
    read_at: Duration,
    value: BearerToken,
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bearer").field(&self.path).finish()
    }
}

impl Credentials {
    /// The CA certificates for the server, as PEM; without it, those of the system.
    #[must_use]
    pub fn authorities(self, path: impl Into<PathBuf>) -> Self {
        Self {
            authorities: Some(path.into()),
            ..self
        }
    }

    /// The client's certificate and its key, as PEM.
    #[must_use]
    pub fn own(self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            own: Some((certificate.into(), key.into())),
            ..self
        }
    }

    /// A file with a bearer token. It is read again every 10 s, and when a server rejects the token. While it cannot be
    /// read or is empty, because it is being replaced, the previous token stays in use.
    #[must_use]
    pub fn bearer(self, path: impl Into<PathBuf>) -> Self {
        let bearer = Bearer {
            path: path.into(),
            read: Mutex::default(),
        };
        Self {
            bearer: Some(Arc::new(bearer)),
            ..self
        }
    }

    /// Encrypts the connections to an address.
    pub(super) fn encrypt(&self, endpoint: Endpoint, address: &Address) -> Result<Endpoint, Error> {
        let mut tls = ClientTlsConfig::new().domain_name(address.host().unwrap_or_default());
        if let Some((certificate, key)) = &self.own {
            let key_pem = read(key)?;
            if is_encrypted_key(&key_pem) {
                return Err(bad(
                    key,
                    &"the key is encrypted, and no password can be given: write it without one",
                ));
            }
            tls = tls.identity(Identity::from_pem(read(certificate)?, key_pem));
        }
        let encrypted = match &self.authorities {
            Some(path) => {
                let trusted = Trusted::of(&read(path)?).map_err(|problem| bad(path, &problem))?;
                endpoint.tls_config_with_verifier(tls, trusted)
            }
            None => endpoint.tls_config(tls.with_native_roots()),
        };
        encrypted.map_err(|error| Error::BadCredentials {
            problem: innermost(&error),
        })
    }

    /// Checks that a bearer token is only sent over connections that nobody can eavesdrop on.
    pub(super) fn check(&self, addresses: &[Address]) -> Result<(), Error> {
        let open = addresses.iter().find(|address| !address.is_private());
        match (&self.bearer, open) {
            (Some(_), Some(address)) => Err(Error::BadCredentials {
                problem: format!(
                    "a bearer token is not sent to {address} unencrypted: prefix the address with https://"
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Whether the file contains another bearer token than the one that a server has just rejected.
    pub(super) async fn has_another(&self, token: Option<&BearerToken>) -> bool {
        let (Some(bearer), Some(token)) = (&self.bearer, token) else {
            return false;
        };
        let other = bearer.read_after(bearer.last()).await;
        other.is_ok_and(|other| other != token)
    }

    /// A request with credentials.
    pub(super) async fn request<R>(&self, message: R) -> Result<Request<R>, Error> {
        let mut request = Request::new(message);
        if let Some(token) = self.token().await? {
            request.metadata_mut().insert(AUTHORIZATION, token);
        }
        Ok(request)
    }

    /// The bearer token that calls present now.
    pub(super) async fn token(&self) -> Result<Option<BearerToken>, Error> {
        match &self.bearer {
            Some(bearer) => bearer.token().await.map(Some),
            None => Ok(None),
        }
    }
}

impl Bearer {
    async fn token(&self) -> Result<BearerToken, Error> {
        let previous = self.last();
        let is_fresh = |read: &&Read| clock::since_boot().saturating_sub(read.read_at) < MAX_AGE;
        match previous.as_ref().filter(is_fresh) {
            Some(read) => Ok(read.value.clone()),
            None => self.read_after(previous).await,
        }
    }

    /// Reads the file. If it cannot be used, the previous token stays in use.
    async fn read_after(&self, previous: Option<Read>) -> Result<BearerToken, Error> {
        let read_at = clock::since_boot();
        let value = match (self.read_file().await, previous) {
            (Ok(value), _) | (Err(_), Some(Read { value, .. })) => value,
            (Err(problem), None) => return Err(problem),
        };
        let read = Read {
            read_at,
            value: value.clone(),
        };
        *self.read.lock() = Some(read);
        Ok(value)
    }

    fn last(&self) -> Option<Read> {
        self.read.lock().clone()
    }

    async fn read_file(&self) -> Result<BearerToken, Error> {
        let text = tokio::fs::read_to_string(&self.path).await;
        let text = text.map_err(|error| bad(&self.path, &error))?;
        let none = || bad(&self.path, &"contains no bearer token");
        let token = Some(text.trim_start_matches('\u{feff}').trim())
            .filter(|token| !token.is_empty())
            .ok_or_else(none)?;
        let value = format!("Bearer {token}").parse();
        let mut value: BearerToken = value.map_err(|_| none())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Whether a key in PEM needs a password.
#[doc(hidden)]
pub fn is_encrypted_key(pem: &[u8]) -> bool {
    let text = String::from_utf8_lossy(pem);
    text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED")
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| bad(path, &error))
}

fn bad(path: &Path, problem: &dyn fmt::Display) -> Error {
    Error::BadCredentials {
        problem: format!("{}: {problem}", path.display()),
    }
}
