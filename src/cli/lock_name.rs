//! `NAMESPACE/NAME`, the form of lock names in arguments. A name alone is in the namespace `default`, as for the clients.

use std::fmt;
use std::str::FromStr;

/// A lock name and its namespace. The server validates both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockName {
    pub namespace: String,
    pub name: String,
}

/// A text without a namespace or a name.
#[derive(Debug, thiserror::Error)]
#[error("write NAMESPACE/NAME, such as default/reports")]
pub struct NoLockName;

impl FromStr for LockName {
    type Err = NoLockName;

    /// Splits at the first slash: a namespace contains none, but a name may.
    fn from_str(text: &str) -> Result<Self, NoLockName> {
        match text.split_once('/') {
            None if !text.is_empty() => Ok(Self {
                namespace: "default".to_owned(),
                name: text.to_owned(),
            }),
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err(NoLockName),
        }
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
