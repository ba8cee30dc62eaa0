//! Packets, and the values in them.

use std::future::Future;
use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::ClientError;
use crate::backend::tls_stream::Duplex;

/// The most bytes of a part of a packet. One that is shorter is the last.
const PART: usize = 0x00ff_ffff;
/// What a packet costs beside its bytes.
const OVERHEAD: usize = 128;
/// The bytes of all packets of a login.
const LOGIN: usize = 64 << 10;
/// How much is reserved at once for bytes that have not come.
const RESERVED: usize = 64 << 10;

/// The packets of a connection, in both directions.
pub struct Packets {
    stream: Box<dyn Duplex>,
    /// What was received, and how far it was read.
    received: Vec<u8>,
    read: usize,
    sequence: u8,
    /// How many more bytes the server may send.
    allowed: usize,
}

impl Packets {
    /// Those of a stream whose login has not begun.
    pub fn new(stream: Box<dyn Duplex>) -> Self {
        Self {
            stream,
            received: Vec::new(),
            read: 0,
            sequence: 0,
            allowed: LOGIN,
        }
    }

    /// The same over another stream, which this makes of the present one.
    ///
    /// # Errors
    /// [`ClientError`] if it fails, or the server has sent something before it.
    pub async fn over<F>(self, make: impl FnOnce(Box<dyn Duplex>) -> F) -> Result<Self, ClientError>
    where
        F: Future<Output = io::Result<Box<dyn Duplex>>>,
    {
        if self.read < self.received.len() {
            return Err(ClientError::protocol("it sends more than its handshake before TLS"));
        }
        let stream = make(self.stream).await?;
        Ok(Self { stream, ..self })
    }

    /// Goes on at this number of the sequence.
    #[cfg(test)]
    pub fn sequence_from(&mut self, sequence: u8) {
        self.sequence = sequence;
    }

    /// Lets the server send so many bytes from now on.
    pub fn allow(&mut self, bytes: usize) {
        self.allowed = bytes;
    }

    /// Counts what is kept of the packets, beside their bytes.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] if that is more than the server may send.
    pub fn keep(&mut self, bytes: usize) -> Result<(), ClientError> {
        let allowed = self.allowed.checked_sub(bytes);
        self.allowed = allowed.ok_or_else(|| ClientError::protocol("its answer is too long"))?;
        Ok(())
    }

    /// Sends a command.
    ///
    /// # Errors
    /// [`ClientError`] if it cannot be sent, or the server has sent something before it: that would be taken for its answer.
    pub async fn command(&mut self, command: u8, text: &[u8]) -> Result<(), ClientError> {
        if self.read < self.received.len() {
            return Err(ClientError::protocol("it sends what nobody asked for"));
        }
        self.sequence = 0;
        self.send(&[&[command], text].concat()).await
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub async fn send(&mut self, payload: &[u8]) -> Result<(), ClientError> {
        let mut bytes = Vec::with_capacity(payload.len() + 8);
        let mut rest = payload;
        loop {
            let (part, behind) = rest.split_at(rest.len().min(PART));
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes()[..3]);
            bytes.push(self.sequence);
            bytes.extend_from_slice(part);
            self.sequence = self.sequence.wrapping_add(1);
            if part.len() < PART {
                break;
            }
            rest = behind;
        }
        self.stream.write_all(&bytes).await?;
        Ok(self.stream.flush().await?)
    }

    /// Receives a packet.
    ///
    /// # Errors
    /// [`ClientError`] if the connection ends, or the server exceeds what it may send.
    pub async fn receive(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut payload = Vec::new();
        loop {
            self.fill(4).await?;
            let header = &self.received[self.read..self.read + 4];
            let length = usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
            if header[3] != self.sequence {
                return Err(ClientError::protocol("its packets are out of order"));
            }
            self.read += 4;
            self.sequence = self.sequence.wrapping_add(1);
            self.keep(length + OVERHEAD)?;
            self.fill(length).await?;
            payload.extend_from_slice(&self.received[self.read..self.read + length]);
            self.read += length;
            if length < PART {
                return Ok(payload);
            }
        }
    }

    /// Receives until so many bytes are there that were not read.
    async fn fill(&mut self, bytes: usize) -> Result<(), ClientError> {
        if self.read == self.received.len() {
            self.received.clear();
            self.received.shrink_to(RESERVED);
            self.read = 0;
        }
        while self.received.len() - self.read < bytes {
            self.received.drain(..std::mem::take(&mut self.read));
            self.received.reserve(RESERVED);
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(())
    }
}

/// The values of a packet, from the first one that was not read.
pub struct Values<'a>(pub &'a [u8]);

impl<'a> Values<'a> {
    /// So many bytes.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] if the packet ends before. The same holds for the other values.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], ClientError> {
        let short = || ClientError::protocol("a packet of it is too short");
        let (bytes, rest) = self.0.split_at_checked(count).ok_or_else(short)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A number of so many bytes, at most 8.
    pub fn number(&mut self, size: usize) -> Result<u64, ClientError> {
        let bytes = self.bytes(size)?;
        Ok(bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
    }

    /// A number whose first byte says its size; absent for NULL.
    pub fn sized(&mut self) -> Result<Option<u64>, ClientError> {
        Ok(Some(match self.number(1)? {
            0xfb => return Ok(None),
            0xfc => self.number(2)?,
            0xfd => self.number(3)?,
            0xfe => self.number(8)?,
            0xff => return Err(ClientError::protocol("a number of it has no size")),
            small => small,
        }))
    }

    /// Bytes behind their number; absent for NULL.
    pub fn text(&mut self) -> Result<Option<&'a [u8]>, ClientError> {
        let Some(length) = self.sized()? else { return Ok(None) };
        self.bytes(usize::try_from(length).unwrap_or(usize::MAX)).map(Some)
    }

    /// The bytes before the next zero, which is skipped, or the end.
    pub fn line(&mut self) -> &'a [u8] {
        let mut parts = self.0.splitn(2, |byte| *byte == 0);
        let line = parts.next().unwrap_or_default();
        self.0 = parts.next().unwrap_or_default();
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets of a server that has sent these bytes.
    async fn of(sent: &[u8]) -> Packets {
        let (client, mut server) = tokio::io::duplex(1 << 20);
        server.write_all(sent).await.unwrap();
        let mut packets = Packets::new(Box::new(client));
        packets.allow(1 << 20);
        packets
    }

    // G202
    #[tokio::test]
    async fn what_comes_before_a_command_is_not_taken_for_its_answer() {
        // The second packet has the sequence of an answer.
        let mut packets = of(&[1, 0, 0, 0, 7, 1, 0, 0, 1, 0]).await;
        assert_eq!(packets.receive().await.unwrap(), [7]);
        let refused = packets.command(3, b"COMMIT").await.unwrap_err();
        assert_eq!(refused.to_string(), "it sends what nobody asked for");
    }

    // G202
    #[tokio::test]
    async fn the_values_of_a_row_count_for_what_they_take() {
        let row = |sequence: u8| [&[64, 0, 0, sequence][..], &[0xfb; 64]].concat();
        let head = [&[1, 0, 0, 0, 64][..]].concat();
        let columns = (1..=64).flat_map(|at| [1, 0, 0, at, b'c']).collect::<Vec<u8>>();
        let end = [5, 0, 0, 65, 0xfe, 0, 0, 0, 0];
        let rows = (66..=255).flat_map(row).collect::<Vec<u8>>();
        let mut packets = of(&[&head[..], &columns, &end, &rows].concat()).await;
        packets.allow(128 << 10);
        let refused = super::super::answers::read(&mut packets).await.unwrap_err();
        assert_eq!(refused.to_string(), "its answer is too long");
    }
}
