//! Who is let in, and what each may do, as parts that take changes up: certificates, rules, limits.

use super::{Apply, ReloadPart, Problem};
use crate::api::Access;
use crate::auth::Policy;
use crate::config::Config;
use crate::tls::{Certificates, Tls};

/// The certificates of the server, and the authorities of its clients.
#[derive(Debug)]
pub struct Encryption(pub Tls);

impl ReloadPart for Encryption {
    fn name(&self) -> &'static str {
        "tls"
    }

    fn prepare(&self, config: &Config) -> Result<Apply, Problem> {
        let Some(settings) = config.tls().cloned() else {
            return Ok(Box::new(|| {}));
        };
        let (tls, read) = (self.0.clone(), Certificates::read(settings)?);
        Ok(Box::new(move || tls.replace(read)))
    }

    fn renew(&self, config: &Config) -> Vec<Problem> {
        let wrong = config.tls().map(|settings| self.0.renew(settings.clone()));
        wrong.into_iter().flatten().map(Problem::from).collect()
    }
}

/// Who is who, what each may do, and how much of it.
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
        let (renewed, wrong) = policy.renewed(settings);
        self.0.auth.replace(Some(renewed));
        wrong.into_iter().map(Problem::from).collect()
    }
}
