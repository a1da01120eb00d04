//! Parameters of the feed's routes.

use crate::failure::{Failure, clip};
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// The longest time that a reader may wait.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(60);

pub(super) const BOTH_OR_NEITHER: &str =
    "since means something within an epoch only: give both, or neither";

/// Reads how long a request may wait.
pub(super) fn wait(name: &str, value: &str) -> Result<Duration, Failure> {
    let limit = u64::try_from(MAX_WAIT.as_millis()).unwrap_or(u64::MAX);
    Ok(Duration::from_millis(number(name, value, limit)?))
}

pub(super) fn number(name: &str, value: &str, limit: u64) -> Result<u64, Failure> {
    match value.parse() {
        Ok(number) if number <= limit => Ok(number),
        _ => Err(Failure::invalid(
            name,
            format!(
                "{name} must be a whole number up to {limit}, got {:?}",
                clip(value)
            ),
        )),
    }
}

pub(super) fn read<T: FromStr<Err: Display>>(name: &str, value: &str) -> Result<T, Failure> {
    value
        .parse()
        .map_err(|error| Failure::invalid(name, format!("{name}: {error}, got {:?}", clip(value))))
}
