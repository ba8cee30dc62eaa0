//! Certificates, authorization rules and quotas, as parts that apply configuration changes.

use super::{Apply, Problem, ReloadPart};
use crate::api::Access;
use crate::auth::{Policy, certificate};
use crate::config::Config;
use crate::metrics::ServerMetrics;
use crate::tls::{Certificates, Tls};

/// The server's certificate and the CA certificates for its clients.
#[derive(Debug, Clone)]
pub struct Encryption {
    tls: Tls,
    metrics: Option<ServerMetrics>,
}

impl Encryption {
    /// The part for these certificates. The metrics show when the server's own expires, from now on.
    pub fn new(tls: Tls, metrics: Option<ServerMetrics>) -> Self {
        let encryption = Self { tls, metrics };
        encryption.show_expiry();
        encryption
    }

    fn show_expiry(&self) {
        let expiry = self.tls.certificate().and_then(|der| certificate::expiry(&der));
        if let (Some(metrics), Some(expiry)) = (&self.metrics, expiry) {
            metrics.certificate_expiry.with_label_values::<&str>(&[]).set(expiry);
        }
    }
}

impl ReloadPart for Encryption {
    fn name(&self) -> &'static str {
        "tls"
    }

    fn prepare(&self, config: &Config) -> Result<Apply, Problem> {
        let Some(settings) = config.tls().cloned() else {
            return Ok(Box::new(|| {}));
        };
        let (encryption, read) = (self.clone(), Certificates::read(settings)?);
        Ok(Box::new(move || {
            encryption.tls.replace(read);
            encryption.show_expiry();
        }))
    }

    fn renew(&self, config: &Config) -> Vec<Problem> {
        let errors = config.tls().map(|settings| self.tls.renew(settings.clone()));
        self.show_expiry();
        errors.into_iter().flatten().map(Problem::from).collect()
    }
}

/// Authentication, authorization rules and quotas.
#[derive(Debug)]
pub struct AccessPart(pub Access);

impl ReloadPart for AccessPart {
    fn name(&self) -> &'static str {
        "auth"
    }

    fn prepare(&self, config: &Config) -> Result<Apply, Problem> {
        let policy = config.policy.as_ref().map(Policy::open).transpose()?;
        let (access, quotas) = (self.0.clone(), config.quotas.clone());
        Ok(Box::new(move || {
            access.auth.replace(policy);
            access.quotas.replace(quotas);
        }))
    }

    fn renew(&self, config: &Config) -> Vec<Problem> {
        let (Some(policy), Some(settings)) = (self.0.auth.policy(), &config.policy) else {
            return Vec::new();
        };
        let (renewed, errors) = policy.renewed(settings);
        self.0.auth.replace(Some(renewed));
        errors.into_iter().map(Problem::from).collect()
    }
}
