//! The values of rows.

use super::client::answers::{Column, Row};
use crate::backend::sql::error::SqlError;
use crate::backend::sql::rows::Written;

/// A column of a row.
///
/// # Errors
/// [`SqlError`] if it has another type.
pub fn get<T: Column>(row: &Row, column: usize) -> Result<T, SqlError> {
    row.get(column).ok_or_else(missing)
}

/// What is wrong with an answer that is too short.
pub fn missing() -> SqlError {
    SqlError::Failed("an answer lacks a row or a column".into())
}

/// When a root was written, from this column and the next one.
///
/// # Errors
/// As [`get`].
pub fn written(row: &Row, time: usize) -> Result<Written, SqlError> {
    Ok(Written {
        time: get(row, time)?,
        ahead: get(row, time + 1)?,
    })
}
