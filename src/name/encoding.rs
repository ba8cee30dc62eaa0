//! Lock names in letters that every store accepts, and bytes as digits.
//!
//! By hand where the formatter would do: each call writes or reads a lease id.

const UPPER: &[u8; 16] = b"0123456789ABCDEF";
const LOWER: &[u8; 16] = b"0123456789abcdef";

/// See [`super::LockName::encoded`].
pub(super) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    push_encoded(&mut out, text);
    out
}

/// Appends what [`encode`] gives.
pub(super) fn push_encoded(out: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') {
            out.push(byte.into());
        } else {
            out.push('%');
            push_digits(out, byte, UPPER);
        }
    }
}

/// Appends two lower-case hexadecimal digits for each byte.
pub(super) fn push_hex(out: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        push_digits(out, byte, LOWER);
    }
}

fn push_digits(out: &mut String, byte: u8, digits: &[u8; 16]) {
    out.push(digits[usize::from(byte >> 4)].into());
    out.push(digits[usize::from(byte & 15)].into());
}

/// Undoes [`push_hex`] for 16 bytes; takes upper-case digits too.
pub(super) fn hex(text: &str) -> Option<[u8; 16]> {
    let digits: &[u8; 32] = text.as_bytes().try_into().ok()?;
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn digit(letter: u8) -> Option<u8> {
    char::from(letter).to_digit(16).map(|digit| digit as u8)
}

/// Undoes [`super::LockName::encoded`]; nothing for text that it did not write.
pub fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            out.push(digit(bytes.next()?)? << 4 | digit(bytes.next()?)?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}
