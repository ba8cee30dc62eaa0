//! Who is let in, and what each may do, as parts that take changes up: certificates, rules, limits.

use std::error::Error;

use super::{Apply, Part};
use crate::api::Access;
use crate::auth::Policy;
use crate::config::Config;
use crate::tls::{Certificates, Tls};

/// The certificates of the server, and the authorities of its clients.
#[derive(Debug)]
pub struct Encryption(pub Tls);

impl Part for Encryption {
    fn name(&self) -> &'static str {
        "tls"
    }

    fn prepare(&self, config: &Config) -> Result<Apply, Box<dyn Error + Send + Sync>> {
        let Some(settings) = config.tls().cloned() else {
            return Ok(Box::new(|| {}));
        };
        let (tls, read) = (self.0.clone(), Certificates::read(settings)?);
        Ok(Box::new(move || tls.replace(read)))
    }
}

/// Who is who, what each may do, and how much of it.
#[derive(Debug)]
pub struct Rights(pub Access);

impl Part for Rights {
    fn name(&self) -> &'static str {
        "auth"
    }

    fn prepare(&self, config: &Config) -> Result<Apply, Box<dyn Error + Send + Sync>> {
        let policy = config.policy.as_ref().map(Policy::open).transpose()?;
        let (access, quotas) = (self.0.clone(), config.quotas.clone());
        Ok(Box::new(move || {
            access.auth.replace(policy);
            access.quotas.replace(quotas);
        }))
    }
}
