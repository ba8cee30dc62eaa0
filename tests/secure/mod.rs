//! Who is let in, what each may do, and how much of it: over real sockets, with certificates and tokens
//! made here.

#![cfg(feature = "embedded")]

use common::{asks, session_client};

mod authority;
mod clients;
mod crowd;
mod fixture;
mod identities;
mod keeping;
mod limits;
mod listed;
mod live;
mod methods;
mod program;
mod revoked;
mod rules;
mod sessions;
mod several;
mod signed;
mod signer;
mod tls;
mod waiters;
mod watches;
