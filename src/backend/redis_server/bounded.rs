//! A bound on each answer of a server: the client of Redis collects an answer in memory however large it is.
//!
//! The stream is read along with the client, as far as needed to know where an answer ends and what it takes. A stream that
//! is no RESP is refused too, because the client could then see other ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most that an answer, or a pushed message, may take in memory, in bytes.
const ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// What a value takes beside its text.
const VALUE_BYTES: usize = 64;
/// The longest number of a header, with its end.
const HEADER_BYTES: usize = 32;

/// A stream from a server whose answers are bounded.
#[derive(Debug)]
pub struct Bounded<S> {
    stream: S,
    answers: Answers,
}

impl<S> Bounded<S> {
    /// Bounds what comes from this stream.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            answers: Answers::default(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        Poll::Ready(self.answers.read(&buf.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What of an answer comes next.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// The byte that says what kind of value it is.
    Kind,
    /// A value that is one line; whether its last byte was a carriage return.
    Line(bool),
    /// The line with the length of a value of this kind.
    Length(u8),
    /// So many bytes of text.
    Text(usize),
}

/// Where the stream is in its answers.
#[derive(Debug)]
struct Answers {
    part: Part,
    /// How many values the present answer still has.
    values: usize,
    /// What it takes so far.
    taken: usize,
    length: Vec<u8>,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            part: Part::Kind,
            values: 1,
            taken: 0,
            length: Vec::new(),
        }
    }
}

impl Answers {
    fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let [first, rest @ ..] = bytes {
            bytes = match self.part {
                Part::Text(left) => {
                    let length = left.min(bytes.len());
                    self.part = Part::Text(left - length);
                    if left == length {
                        self.end_value();
                    }
                    &bytes[length..]
                }
                Part::Kind => {
                    self.take(1)?;
                    self.begin_value(*first)?;
                    rest
                }
                Part::Line(after_return) => {
                    self.take(1)?;
                    self.part = Part::Line(*first == b'\r');
                    if after_return && *first == b'\n' {
                        self.end_value();
                    }
                    rest
                }
                Part::Length(kind) => {
                    self.length.push(*first);
                    if self.length.ends_with(b"\r\n") {
                        self.read_length(kind)?;
                    } else if self.length.len() > HEADER_BYTES {
                        return Err(no_resp());
                    }
                    rest
                }
            };
        }
        Ok(())
    }

    fn begin_value(&mut self, kind: u8) -> io::Result<()> {
        self.part = match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Part::Line(false),
            b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|' => {
                self.length.clear();
                Part::Length(kind)
            }
            _ => return Err(no_resp()),
        };
        Ok(())
    }

    fn read_length(&mut self, kind: u8) -> io::Result<()> {
        let text = std::str::from_utf8(&self.length).map_err(|_| no_resp())?;
        let length = text.trim().parse::<i64>().map_err(|_| no_resp())?;
        let is_nil = length < 0 && matches!(kind, b'$' | b'*' | b'~' | b'>');
        if is_nil {
            self.end_value();
            return Ok(());
        }
        let length = usize::try_from(length).map_err(|_| no_resp())?;
        match kind {
            b'$' | b'!' | b'=' => {
                self.take(length)?;
                // With its line end.
                self.part = Part::Text(length + 2);
                return Ok(());
            }
            b'%' => self.add_values(2 * length)?,
            b'|' => self.add_values(2 * length + 1)?,
            _ => self.add_values(length)?,
        }
        self.end_value();
        Ok(())
    }

    fn add_values(&mut self, values: usize) -> io::Result<()> {
        self.take(values.saturating_mul(VALUE_BYTES))?;
        self.values += values;
        Ok(())
    }

    fn end_value(&mut self) {
        self.part = Part::Kind;
        self.values -= 1;
        if self.values == 0 {
            (self.values, self.taken) = (1, 0);
        }
    }

    fn take(&mut self, bytes: usize) -> io::Result<()> {
        self.taken = self.taken.saturating_add(bytes);
        match self.taken <= ANSWER_BYTES {
            true => Ok(()),
            false => Err(too_large()),
        }
    }
}

fn too_large() -> io::Error {
    let problem = format!("an answer of Redis is larger than {} MiB", ANSWER_BYTES >> 20);
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

fn no_resp() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of Redis breaks its protocol")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads pieces of this length, and returns what the last answer takes so far.
    fn read(text: &[u8], piece: usize) -> io::Result<usize> {
        let mut answers = Answers::default();
        text.chunks(piece).try_for_each(|bytes| answers.read(bytes))?;
        assert!(matches!(answers.part, Part::Kind) || answers.taken > 0);
        Ok(answers.taken)
    }

    #[test]
    fn every_kind_of_answer_ends_where_it_ends_however_it_is_cut() {
        let answers: &[&[u8]] = &[
            b"+OK\r\n",
            b"+a\rb\nc\r\n",
            b"-ERR no\r\n",
            b":-7\r\n",
            b"_\r\n",
            b",1.5\r\n",
            b"#t\r\n",
            b"(12345678901234567890\r\n",
            b"$3\r\na\r\n\r\n",
            b"$0\r\n\r\n",
            b"$-1\r\n",
            b"!5\r\nERR a\r\n",
            b"=5\r\ntxt:a\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
            b"~2\r\n+a\r\n+b\r\n",
            b"%1\r\n+a\r\n*2\r\n:1\r\n:2\r\n",
            b"|1\r\n+a\r\n:1\r\n*1\r\n:2\r\n",
            b">3\r\n+message\r\n$1\r\nc\r\n$1\r\nm\r\n",
        ];
        for answer in answers {
            for piece in 1..=answer.len() {
                assert_eq!(read(answer, piece).unwrap(), 0, "{:?}", String::from_utf8_lossy(answer));
            }
        }
        assert_eq!(read(&answers.concat(), 7).unwrap(), 0);
    }

    // G190
    #[test]
    fn an_answer_that_takes_too_much_is_refused_before_it_is_there() {
        let refused = |text: &[u8]| read(text, 4096).expect_err("too much").to_string();
        for text in [
            &b"$2147483647\r\n"[..],
            b"*2147483647\r\n",
            b"*9223372036854775807\r\n",
            b"|9223372036854775807\r\n",
            b"$9223372036854775807\r\n",
            b">1000000000\r\n",
            b"%1000000\r\n",
            b"*2\r\n$60000000\r\n",
        ] {
            let more = [text, &vec![b'x'; 60_000_000], b"\r\n$60000000\r\n"].concat();
            assert!(refused(&more).contains("64 MiB"), "{}", String::from_utf8_lossy(text));
        }
        assert!(refused(&[b"+".as_slice(), &vec![b'a'; ANSWER_BYTES]].concat()).contains("64 MiB"));
        assert!(refused(&b"*1000\r\n".repeat(2000)).contains("64 MiB"), "nested");
        for text in [
            &b"HTTP/1.1"[..],
            b"$1a\r\n",
            b"%-1\r\n",
            b"$99999999999999999999999999999999999",
            b"+a\r\n\0",
        ] {
            assert!(refused(text).contains("protocol"), "{}", String::from_utf8_lossy(text));
        }
    }

    // G190
    #[test]
    fn many_answers_are_as_many_as_they_are() {
        assert_eq!(read(&b"*2\r\n:1\r\n$3\r\nabc\r\n".repeat(1 << 20), 65_536).unwrap(), 0);
    }
}
