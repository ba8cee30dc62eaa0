//! The methods of the service and the reasons of its errors, each in one table: metrics and limits read them here.

pub use fencepost_client::reason;

/// A method of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// Its path, such as `/fencepost.v1.LockService/Acquire`.
    pub path: &'static str,
    /// Its name, such as `Acquire`.
    pub name: &'static str,
    /// Whether its answer is a stream.
    pub streams: bool,
    /// Whether its request is a stream.
    pub takes_stream: bool,
}

impl Method {
    /// The method at a path such as `/fencepost.v1.LockService/Acquire`.
    pub fn at(path: &str) -> Option<&'static Self> {
        METHODS.iter().find(|method| method.path == path)
    }
}

// The tables that `build.rs` makes of the descriptors of `proto/`: SERVICES, METHODS, and the paths by name.
include!(concat!(env!("OUT_DIR"), "/methods.rs"));
