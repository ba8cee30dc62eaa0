//! The rules of the project, checked on its text: who imports whom, where a clock is read, and that
//! the documents say nothing that is not there.
//!
//! Each rule is one table or one sentence; an exception stands in the table with its reason, and an
//! exception that nothing needs any more is an error too.

mod audit;
mod backend;
mod book;
mod cargo;
mod circles;
mod clocks;
mod commands;
mod compiled;
mod deny;
mod documents;
mod faults;
mod guarantees;
mod imports;
mod names;
mod proto;
mod reference;
mod source;
mod words;
