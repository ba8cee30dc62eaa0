//! The key of a server's marker.

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::failure::{of_script, unavailable};
use super::slots::slot;
use crate::backend::BackendError;

/// Where the marker is stored.
#[derive(Debug)]
pub enum MarkerKey {
    /// At this key.
    Fixed(Vec<u8>),
    /// At a key with this prefix, in the first slot of the node that is not migrating. The slot is
    /// chosen anew each time: when slots move, an admitted server writes the marker to its new slot
    /// before a new replica has to rely on the marker there.
    Slot(String),
}

impl MarkerKey {
    /// The key of the marker on the server behind this connection; absent if the server serves no slot.
    ///
    /// # Errors
    /// Unavailable if the server does not reply.
    pub async fn key(&self, connection: &mut MultiplexedConnection) -> Result<Option<Vec<u8>>, BackendError> {
        let prefix = match self {
            Self::Fixed(key) => return Ok(Some(key.clone())),
            Self::Slot(prefix) => prefix,
        };
        let mut command = redis::cmd("CLUSTER");
        let nodes: String = command
            .arg("NODES")
            .query_async(connection)
            .await
            .map_err(unavailable)?;
        Ok(stable_slot(&nodes).map(|slot| key_in_slot(prefix, slot)))
    }

    /// Maps the error of a failed call. If the slot has just moved to another node, the caller
    /// chooses another slot.
    pub fn call_error(&self, error: &RedisError) -> BackendError {
        match (self, error.redirect_node()) {
            (Self::Slot(_), Some(_)) => unavailable(MOVED),
            _ => of_script(error),
        }
    }
}

/// The reason when the marker's slot has moved to another node; the caller retries.
pub const MOVED: &str = "the marker's slot has moved";

/// The first slot that a node serves and is not migrating, from its own CLUSTER NODES.
fn stable_slot(nodes: &str) -> Option<u16> {
    let mine = nodes.lines().find(|line| line.contains("myself"))?;
    let ranges: Vec<&str> = mine.split_whitespace().skip(8).collect();
    let moving: Vec<u16> = ranges
        .iter()
        .filter_map(|range| range.strip_prefix('[')?.split('-').next()?.parse().ok())
        .collect();
    let bounds = |range: &&str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
    };
    let mut served = ranges.iter().filter_map(bounds).flatten();
    served.find(|slot| !moving.contains(slot))
}

/// A key that begins with `prefix` and belongs to this slot.
fn key_in_slot(prefix: &str, wanted: u16) -> Vec<u8> {
    let tag = (0u32..).find(|tag| slot(tag.to_string().as_bytes()) == wanted);
    format!("{prefix}:{{{}}}", tag.unwrap_or_default()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_stored_in_a_slot_that_is_not_migrating() {
        let nodes = "a 1:1@1 master - 0 0 2 connected 7-9\n\
                     b 1:2@2 myself,master - 0 0 1 connected 100-101 300 [100->-a]\n";
        assert_eq!(stable_slot(nodes), Some(101));
        assert_eq!(stable_slot("b 1:2@2 myself,master - 0 0 1 connected\n"), None);
    }

    #[test]
    fn a_key_can_be_made_for_any_slot() {
        for wanted in [0, 5461, 16_383] {
            assert_eq!(slot(&key_in_slot("p:admitted", wanted)), wanted);
        }
    }
}
