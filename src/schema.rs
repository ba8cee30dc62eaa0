//! The tables and values that a configuration file is made of: what each accepts, its default and its documentation.
//!
//! - [`table`]: a table with its keys, declared once by the macro `section!`.
//! - [`value`]: numbers, times and ratios that refuse what is outside their bounds.

use serde::de::DeserializeOwned;

pub mod table;
pub mod value;

pub(crate) use self::table::section;
pub use self::table::{Key, Section, Table, Tables, toml_value};
pub(crate) use self::value::unbounded;
pub use self::value::{Bounded, Count, Period, Ratio};

/// A value of a file as it was parsed, with its place in the text.
pub type RawValue<'a> = toml::de::ValueDeserializer<'a>;
/// Why a value cannot be read, with the path of the key below it.
pub type ReadError = serde_path_to_error::Error<toml::de::Error>;

/// Reads a table.
///
/// # Errors
/// [`ReadError`] with the key and the place of what is wrong.
pub fn read<T: DeserializeOwned>(raw: RawValue<'_>) -> Result<T, ReadError> {
    serde_path_to_error::deserialize(raw)
}
