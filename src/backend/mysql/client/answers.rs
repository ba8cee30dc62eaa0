//! What the statements of a script returned. Values come as text.

use super::ClientError;
use super::packets::{Packets, Values};

/// The most columns. No statement of the store has more than ten.
const COLUMNS: u64 = 64;
/// What a value costs beside its bytes.
const VALUE: usize = 64;
/// The status of a statement behind which another one is answered.
const MORE: u64 = 8;
/// The longest message of an error, as servers have it.
const MESSAGE: usize = 512;

/// What a statement did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How many rows it changed.
    pub changed: u64,
    /// The rows that it returned.
    pub rows: Vec<Row>,
}

/// A row: the text of each column, unless it is NULL.
#[derive(Debug)]
pub struct Row(Vec<Option<Vec<u8>>>);

impl Row {
    /// A column. `None` if it is absent, or has another type.
    pub fn get<T: Column>(&self, column: usize) -> Option<T> {
        T::of(self.0.get(column)?.as_deref())
    }
}

/// What a column may be read as.
pub trait Column: Sized {
    /// Reads it.
    fn of(text: Option<&[u8]>) -> Option<Self>;
}

impl Column for Vec<u8> {
    fn of(text: Option<&[u8]>) -> Option<Self> {
        text.map(<[u8]>::to_vec)
    }
}

impl Column for String {
    fn of(text: Option<&[u8]>) -> Option<Self> {
        text.map(|text| String::from_utf8_lossy(text).into_owned())
    }
}

impl Column for i64 {
    fn of(text: Option<&[u8]>) -> Option<Self> {
        std::str::from_utf8(text?).ok()?.parse().ok()
    }
}

impl Column for i32 {
    fn of(text: Option<&[u8]>) -> Option<Self> {
        std::str::from_utf8(text?).ok()?.parse().ok()
    }
}

impl<T: Column> Column for Option<T> {
    fn of(text: Option<&[u8]>) -> Option<Self> {
        text.map_or(Some(None), |text| T::of(Some(text)).map(Some))
    }
}

/// What the server refuses with this packet, if it is one of an error.
pub fn error(packet: &[u8]) -> Option<ClientError> {
    let mut values = Values(packet.strip_prefix(&[0xff])?);
    let code = u16::try_from(values.number(2).ok()?).ok()?;
    // The state says no more than the number.
    let message = match values.0 {
        [b'#', _, _, _, _, _, message @ ..] => message,
        message => message,
    };
    let message = String::from_utf8_lossy(&message[..message.len().min(MESSAGE)]);
    // It reaches callers, whose terminals obey such characters.
    let message = message.replace(char::is_control, " ");
    Some(ClientError::Server { code, message })
}

/// Reads what a statement returned, and whether that of another one follows.
///
/// # Errors
/// [`ClientError`], of the server if it refuses the statement.
pub async fn read(packets: &mut Packets) -> Result<(Outcome, bool), ClientError> {
    let first = receive(packets).await?;
    let mut values = Values(&first);
    if first.first() == Some(&0) {
        values.bytes(1)?;
        let changed = values.sized()?.unwrap_or_default();
        values.sized()?;
        let has_more = values.number(2)? & MORE != 0;
        return Ok((
            Outcome {
                changed,
                rows: Vec::new(),
            },
            has_more,
        ));
    }
    // Absent: it asks for a file of this machine.
    let columns = values.sized()?.filter(|columns| (1..=COLUMNS).contains(columns));
    let columns = columns.ok_or_else(|| ClientError::protocol("it returns another number of columns"))?;
    for _ in 0..columns {
        receive(packets).await?;
    }
    end(&receive(packets).await?).ok_or_else(|| ClientError::protocol("it returns more columns than it says"))?;
    let mut rows = Vec::new();
    loop {
        let packet = receive(packets).await?;
        if let Some(status) = end(&packet) {
            return Ok((Outcome { changed: 0, rows }, status & MORE != 0));
        }
        packets.keep(VALUE * columns as usize)?;
        let mut values = Values(&packet);
        let row = (0..columns).map(|_| Ok(values.text()?.map(<[u8]>::to_vec)));
        rows.push(Row(row.collect::<Result<_, ClientError>>()?));
    }
}

async fn receive(packets: &mut Packets) -> Result<Vec<u8>, ClientError> {
    let packet = packets.receive().await?;
    error(&packet).map_or(Ok(packet), Err)
}

/// The status of a packet that ends columns or rows.
fn end(packet: &[u8]) -> Option<u64> {
    match packet {
        [0xfe, _, _, low, high] => Some(u64::from(*low) | u64::from(*high) << 8),
        _ => None,
    }
}
