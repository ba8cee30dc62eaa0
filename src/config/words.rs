//! The values in the configuration file that represent types of other modules.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::api::ListenAddress;
use crate::auth::{AnonymousAccess, BearerHash, Pattern, Verb};
use crate::backend::Guarantee;
use crate::schema::{Bounded, unbounded};
use crate::telemetry::{LogFilter, LogFormat};
use crate::tls::ClientAuth;

/// The guarantee that a namespace demands of its backend, written `ap` or `cp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeclaredGuarantee {
    /// At least AP.
    Ap,
    /// CP.
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

/// Which addresses are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encrypted {
    /// Addresses that other machines can reach.
    Remote,
    /// All addresses except Unix sockets.
    Tcp,
    /// All addresses.
    All,
}

impl Encrypted {
    /// Whether this address is encrypted.
    pub(super) fn covers(self, address: &ListenAddress) -> bool {
        match self {
            Self::Remote => !address.is_local(),
            Self::Tcp => matches!(address, ListenAddress::Tcp { .. }),
            Self::All => true,
        }
    }
}

/// A parsed text, which is displayed as it was written.
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
    /// A text, or a prefix that ends in `*`.
    PatternText, Pattern, Pattern::new, "a text that may end in \"*\", for all that begin so"
);
read_text!(
    /// A static token.
    BearerText, BearerHash, BearerHash::parse, "a name, a colon and 64 hexadecimal digits"
);

unbounded!(
    ClientAuth,
    DeclaredGuarantee,
    AnonymousAccess,
    Encrypted,
    LogFilter,
    LogFormat,
    Verb
);
