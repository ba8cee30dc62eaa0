//! The values of log lines, escaped and cut: a hostile store may answer with line breaks, with sequences that move the
//! cursor of a terminal, or with a megabyte.

use std::fmt::{self, Debug, Write};

use serde_json::Value;
use tracing::field::Field;
use tracing_subscriber::fmt::format::Writer;

/// The longest value of a line, in bytes.
const VALUE_BYTES: usize = 4096;
/// A longer line of JSON is parsed to cut its values.
const LINE_BYTES: usize = 16 * 1024;
/// What stands at the end of a value that was cut.
const CUT: &str = "… (cut)";

/// Writes a field of a line of text: the message alone, another one as `name=value`.
pub(super) fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let name = field.name();
    match writer.has_ansi_escapes() {
        _ if name == "message" => {}
        true => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?,
        false => write!(writer, "{name}=")?,
    }
    let mut escaped = Escaped {
        writer,
        left: VALUE_BYTES,
        is_cut: false,
    };
    match write!(escaped, "{value:?}") {
        Err(_) if escaped.is_cut => writer.write_str(CUT),
        written => written,
    }
}

/// Escapes control characters, and fails once it has written as many bytes as it may.
struct Escaped<'a, 'b> {
    writer: &'a mut Writer<'b>,
    left: usize,
    is_cut: bool,
}

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            let Some(left) = self.left.checked_sub(char.len_utf8()) else {
                self.is_cut = true;
                return Err(fmt::Error);
            };
            self.left = left;
            match char.is_control() {
                true => write!(self.writer, "{}", char.escape_default())?,
                false => self.writer.write_char(char)?,
            }
        }
        Ok(())
    }
}

/// A line of JSON whose long values are cut.
pub(super) fn shortened_json(line: &[u8]) -> Vec<u8> {
    if line.len() <= LINE_BYTES {
        return line.to_vec();
    }
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(line) else {
        return line[..LINE_BYTES].to_vec();
    };
    for value in fields.values_mut() {
        if let Value::String(text) = value
            && text.len() > VALUE_BYTES
        {
            let end = (0..=VALUE_BYTES).rfind(|&at| text.is_char_boundary(at));
            text.truncate(end.unwrap_or(0));
            text.push_str(CUT);
        }
    }
    format!("{}\n", Value::Object(fields)).into_bytes()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing_subscriber::field::MakeExt;
    use tracing_subscriber::fmt::format::debug_fn;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    // G186
    #[test]
    fn a_hostile_value_is_one_line_of_bounded_length() {
        let lines = Lines::default();
        let output = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .fmt_fields(debug_fn(field).delimited(" "))
            .with_writer(move || output.clone())
            .finish();
        let error = format!(
            "\x1b]0;pwn\x07\r\n2026-01-01T00:00:00Z ERROR forged {}",
            "\u{fc}".repeat(1 << 20)
        );
        tracing::subscriber::with_default(
            subscriber,
            || tracing::warn!(%error, number = 7, text = "a b", "it failed: {error}"),
        );
        let line = String::from_utf8(lines.0.lock().clone()).expect("UTF-8");
        assert_eq!(line.matches('\n').count(), 1, "{line:?}");
        assert!(!line.trim_end().contains(char::is_control), "{line:?}");
        assert!(line.len() < 2 * VALUE_BYTES + 200, "{} bytes", line.len());
        assert!(line.contains(r"it failed: \u{1b}]0;pwn\u{7}\r\n2026"), "{line}");
        assert!(line.ends_with("… (cut) number=7 text=\"a b\"\n"), "{line}");
    }

    // G186
    #[test]
    fn a_long_line_of_json_stays_json_with_shorter_values() {
        let line = format!("{{\"error\":\"{}\",\"number\":7}}\n", "\u{fc}".repeat(1 << 20));
        let line = shortened_json(line.as_bytes());
        let fields: Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(fields["number"], 7);
        assert!(line.len() < VALUE_BYTES + 100 && fields["error"].as_str().is_some_and(|text| text.ends_with(CUT)));
        assert_eq!(shortened_json(b"{}\n"), b"{}\n");
    }
}
