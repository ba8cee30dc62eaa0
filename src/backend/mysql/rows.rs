//! The values of rows.

use super::client::answers::{Column, Row};
use crate::backend::sql::error::SqlError;
use crate::backend::sql::rows::Written;
use crate::backend::sql::settings::Terms;

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

/// What the store was opened with, from this column and the next one.
///
/// # Errors
/// As [`get`].
pub fn terms(row: &Row, replication: usize) -> Result<Option<Terms>, SqlError> {
    let kept: (Option<String>, Option<String>) = (get(row, replication)?, get(row, replication + 1)?);
    Ok(kept
        .0
        .zip(kept.1)
        .map(|(replication, guarantee)| Terms { replication, guarantee }))
}
