//! The protocols of the stores, explored exhaustively in small worlds: every order in which their
//! steps can reach the store, with answers that are lost and steps that come late.

mod explorer;
mod record;
mod redlock;
