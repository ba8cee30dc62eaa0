//! Lock names in letters that every store accepts.

/// See [`super::LockName::encoded`].
pub(super) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') {
            out.push(byte.into());
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            out.push('%');
            out.push(DIGITS[usize::from(byte >> 4)].into());
            out.push(DIGITS[usize::from(byte & 15)].into());
        }
    }
    out
}

/// Undoes [`super::LockName::encoded`]; nothing for text that it did not write.
pub fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
            out.push(digit(bytes.next()?)? << 4 | digit(bytes.next()?)?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}
