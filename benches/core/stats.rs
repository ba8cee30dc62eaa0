//! Medians and the like.

use std::time::Duration;

/// The middle value.
pub fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// The value that a share of all values does not exceed; of none, not a number.
pub fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    values.get((share * last).ceil() as usize).copied().unwrap_or(f64::NAN)
}

/// The median with the lowest and the highest value, in words.
pub fn spread(values: &[f64], digits: usize) -> String {
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let middle = median(values.to_vec());
    format!("{middle:.digits$} ({lowest:.digits$} to {highest:.digits$})")
}

/// The ratios of two series, pair by pair.
pub fn ratios(these: impl Iterator<Item = f64>, those: impl Iterator<Item = f64>) -> Vec<f64> {
    these.zip(those).map(|(this, that)| this / that).collect()
}

/// In milliseconds.
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
