//! The embedded store under a server that crashes, stands still, or loses its disk or its file.

mod disk;
mod file;
mod kill;
mod load;
mod pause;
