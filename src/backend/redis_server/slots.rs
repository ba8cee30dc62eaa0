//! The slots of a Cluster.

/// The number of slots of a Cluster.
pub const SLOTS: u16 = 16_384;

/// The slot of a key, computed from its `{tag}` if there is one, as the servers do.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').map(|close| &rest[..close])
    });
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(hashed) % SLOTS
}
