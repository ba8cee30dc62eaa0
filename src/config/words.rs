//! The words of the configuration file that stand for types of other modules.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::api::ListenAddress;
use crate::auth::{AnonymousAccess, BearerHash, Pattern, Verb};
use crate::backend::Guarantee;
use crate::schema::{Bounded, unbounded};
use crate::telemetry::{LogFilter, LogFormat};

/// What a namespace demands of its backend, written `ap` or `cp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeclaredGuarantee {
    /// Available is enough.
    Ap,
    /// It must be consistent.
    Cp,
}

impl From<DeclaredGuarantee> for Guarantee {
    fn from(declared: DeclaredGuarantee) -> Self {
        match declared {
            DeclaredGuarantee::Ap => Self::Ap,
            DeclaredGuarantee::Cp => Self::Cp,
        }
    }
}

/// Whether clients show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// They are not asked for one.
    None,
    /// They may.
    Optional,
    /// They must.
    Required,
}

/// Which addresses are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encrypted {
    /// Those that other machines can reach.
    Remote,
    /// All but Unix sockets.
    Tcp,
    /// All.
    All,
}

impl Encrypted {
    /// Whether this address is one of them.
    pub(super) fn covers(self, address: &ListenAddress) -> bool {
        match self {
            Self::Remote => !address.is_local(),
            Self::Tcp => matches!(address, ListenAddress::Tcp { .. }),
            Self::All => true,
        }
    }
}

/// Who may ask for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnonymousAccessName {
    /// Everybody.
    Open,
    /// Whoever is authenticated.
    Closed,
}

impl From<AnonymousAccessName> for AnonymousAccess {
    fn from(word: AnonymousAccessName) -> Self {
        match word {
            AnonymousAccessName::Open => Self::Open,
            AnonymousAccessName::Closed => Self::Closed,
        }
    }
}

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerbName {
    /// Takes a lock, renews its lease, gives it back.
    Acquire,
    /// Looks at locks.
    Read,
    /// Takes locks away from others.
    Admin,
}

impl From<VerbName> for Verb {
    fn from(word: VerbName) -> Self {
        match word {
            VerbName::Acquire => Self::Acquire,
            VerbName::Read => Self::Read,
            VerbName::Admin => Self::Admin,
        }
    }
}

/// A text that was read as something, and is shown as it was written.
macro_rules! read_text {
    ($(#[doc = $doc:literal])+ $name:ident, $value:ty, $read:path, $bounds:literal) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name {
            pub(super) text: String,
            pub(super) value: $value,
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                let value = $read(&text).map_err(|problem| problem.to_string())?;
                Ok(Self { text, value })
            }
        }

        impl From<$name> for String {
            fn from(read: $name) -> Self {
                read.text
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.text)
            }
        }

        impl Bounded for $name {
            fn bounds() -> Option<String> {
                Some($bounds.to_owned())
            }
        }
    };
}

read_text!(
    /// A text, or the beginning of texts.
    PatternText, Pattern, Pattern::new, "a text that may end in \"*\", for all that begin so"
);
read_text!(
    /// A static token.
    BearerText, BearerHash, BearerHash::parse, "a name, a colon and 64 hexadecimal digits"
);

unbounded!(
    ClientCertificates,
    DeclaredGuarantee,
    AnonymousAccessName,
    Encrypted,
    LogFilter,
    LogFormat,
    VerbName
);
