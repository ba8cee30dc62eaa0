//! What a client shows to prove who it is, and by what it knows the server. All of it lies in files, and
//! is read again when it may have changed: for each new connection, and the bearer token now and then.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::Address;
use super::error::Error;
use crate::clock;

/// How old a bearer token may be before its file is read again.
const FRESH: Duration = Duration::from_secs(10);

/// The files with what a client shows, and by what it knows the server. Clones share what was read.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    authorities: Option<PathBuf>,
    own: Option<(PathBuf, PathBuf)>,
    bearer: Option<Arc<Bearer>>,
}

/// A file with a bearer token, and what was read of it last.
struct Bearer {
    path: PathBuf,
    /// Never held while the file is read.
    read: Mutex<Option<Read>>,
}

/// A bearer token, and when it was read.
#[derive(Clone)]
struct Read {
    at: Duration,
    value: MetadataValue<Ascii>,
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bearer").field(&self.path).finish()
    }
}

impl Credentials {
    /// The authorities that may sign for the server, as PEM; without it, those of the system.
    #[must_use]
    pub fn authorities(self, path: impl Into<PathBuf>) -> Self {
        Self {
            authorities: Some(path.into()),
            ..self
        }
    }

    /// The client's own certificate and its key, as PEM.
    #[must_use]
    pub fn own(self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            own: Some((certificate.into(), key.into())),
            ..self
        }
    }

    /// A file with a bearer token. It is read again every few seconds, and when a server does not accept the
    /// last one; while it cannot be read, or is empty because it is about to be written, that one goes on.
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

    /// What an encrypted connection to an address goes by.
    pub(super) fn tls(&self, address: &Address) -> Result<ClientTlsConfig, Error> {
        let mut tls = ClientTlsConfig::new().domain_name(address.host().unwrap_or_default());
        tls = match &self.authorities {
            Some(path) => tls.ca_certificate(Certificate::from_pem(read(path)?)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = &self.own {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(tls)
    }

    /// Whether they may be shown to whoever can read what goes to these addresses.
    pub(super) fn check(&self, addresses: &[Address]) -> Result<(), Error> {
        let open = addresses.iter().find(|address| !address.is_private());
        match (&self.bearer, open) {
            (Some(_), Some(address)) => Err(Error::BadCredentials {
                problem: format!("a bearer token is not sent to {address} for all to read: write https:// before it"),
            }),
            _ => Ok(()),
        }
    }

    /// Whether there is another bearer token than the one that a server has just not accepted.
    pub(super) async fn has_another(&self, shown: Option<&MetadataValue<Ascii>>) -> bool {
        let (Some(bearer), Some(shown)) = (&self.bearer, shown) else {
            return false;
        };
        let another = bearer.read_after(bearer.last()).await;
        another.is_ok_and(|another| another != shown)
    }

    /// A request that says who sends it.
    pub(super) async fn request<R>(&self, message: R) -> Result<Request<R>, Error> {
        let mut request = Request::new(message);
        if let Some(bearer) = &self.bearer {
            request.metadata_mut().insert("authorization", bearer.shown().await?);
        }
        Ok(request)
    }
}

impl Bearer {
    async fn shown(&self) -> Result<MetadataValue<Ascii>, Error> {
        let before = self.last();
        let is_fresh = |read: &&Read| clock::since_boot().saturating_sub(read.at) < FRESH;
        match before.as_ref().filter(is_fresh) {
            Some(read) => Ok(read.value.clone()),
            None => self.read_after(before).await,
        }
    }

    /// Reads the file; what was read before goes on where it is no good.
    async fn read_after(&self, before: Option<Read>) -> Result<MetadataValue<Ascii>, Error> {
        let at = clock::since_boot();
        let value = match (self.fresh().await, before) {
            (Ok(value), _) | (Err(_), Some(Read { value, .. })) => value,
            (Err(problem), None) => return Err(problem),
        };
        let read = Read {
            at,
            value: value.clone(),
        };
        *self.read.lock() = Some(read);
        Ok(value)
    }

    fn last(&self) -> Option<Read> {
        self.read.lock().clone()
    }

    async fn fresh(&self) -> Result<MetadataValue<Ascii>, Error> {
        let text = tokio::fs::read_to_string(&self.path).await;
        let text = text.map_err(|error| bad(&self.path, &error))?;
        let none = || bad(&self.path, &"holds no bearer token");
        let token = Some(text.trim()).filter(|token| !token.is_empty()).ok_or_else(none)?;
        let value = format!("Bearer {token}").parse();
        let mut value: MetadataValue<Ascii> = value.map_err(|_| none())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| bad(path, &error))
}

fn bad(path: &Path, problem: &dyn fmt::Display) -> Error {
    Error::BadCredentials {
        problem: format!("{}: {problem}", path.display()),
    }
}
