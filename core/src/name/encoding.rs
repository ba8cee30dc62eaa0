//! Encodes lock names in characters that every store accepts, and bytes as hexadecimal digits.
//!
//! Written without `format!`, because each call encodes or decodes a lease id.

use std::borrow::Cow;

const UPPER: &[u8; 16] = b"0123456789ABCDEF";
const LOWER: &[u8; 16] = b"0123456789abcdef";

/// See [`super::LockName::encoded`].
pub(super) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    push_encoded(&mut out, text);
    out
}

/// Appends the output of [`encode`].
pub(super) fn push_encoded(out: &mut String, text: &str) {
    // Names are mostly plain: plain runs are copied whole, not byte by byte.
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| !is_plain(byte)) {
        out.push_str(&rest[..at]);
        // Only whole characters can be split off, and a character that is not plain may have
        // several bytes.
        let escaped = rest[at..].chars().next().map_or(1, char::len_utf8);
        for byte in rest[at..at + escaped].bytes() {
            out.push('%');
            out.push(digit_of(byte >> 4, UPPER));
            out.push(digit_of(byte, UPPER));
        }
        rest = &rest[at + escaped..];
    }
    out.push_str(rest);
}

/// The length of the output of [`encode`].
pub(super) fn encoded_len(text: &str) -> usize {
    text.bytes().map(|byte| if is_plain(byte) { 1 } else { 3 }).sum()
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// Appends two lower-case hexadecimal digits for each byte.
pub(super) fn push_hex(out: &mut String, bytes: &[u8; 16]) {
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = LOWER[usize::from(byte >> 4)];
        pair[1] = LOWER[usize::from(byte & 15)];
    }
    out.extend(std::str::from_utf8(&digits));
}

fn digit_of(half: u8, digits: &[u8; 16]) -> char {
    digits[usize::from(half & 15)].into()
}

/// Decodes [`push_hex`]; `None` for text that it did not write.
pub(super) fn hex(text: &str) -> Option<[u8; 16]> {
    let digits: &[u8; 32] = text.as_bytes().try_into().ok()?;
    let (mut bytes, mut all) = ([0; 16], 0);
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = [pair[0], pair[1]].map(|letter| VALUES[usize::from(letter)]);
        all |= high | low;
        *byte = high << 4 | low;
    }
    (all < 16).then_some(bytes)
}

/// The value of each lower-case hexadecimal digit, and for other bytes one that is none.
const VALUES: [u8; 256] = {
    let mut values = [255; 256];
    let mut value = 0;
    while value < 16 {
        values[LOWER[value as usize] as usize] = value;
        value += 1;
    }
    values
};

/// The value of an upper-case hexadecimal digit.
fn digit(letter: u8) -> Option<u8> {
    match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'A'..=b'F' => Some(letter - b'A' + 10),
        _ => None,
    }
}

/// Decodes [`super::LockName::encoded`]; `None` for text that it did not write.
pub fn decode(text: &str) -> Option<Cow<'_, str>> {
    if text.bytes().all(is_plain) {
        return Some(text.into());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let byte = digit(bytes.next()?)? << 4 | digit(bytes.next()?)?;
                (!is_plain(byte)).then_some(byte)?
            }
            byte => is_plain(byte).then_some(byte)?,
        });
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}
