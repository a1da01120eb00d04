//! Parses the query parameters of the routes under `/v1/kv`.

use crate::failure::{Failure, clip};
use foreword_ordering::feed::Epoch;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// Maximum time that a request may wait for new events or pushes.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(60);

/// Splits a query into names and values of parameters, without percent-decoding.
pub(crate) fn pairs(query: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.unwrap_or_default().split('&');
    let pairs = pairs.filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Returns `epoch` and `since` as one position; `None` if both are absent, an error if only one is given.
pub(super) fn position(
    epoch: Option<Epoch>,
    since: Option<u64>,
) -> Result<Option<(Epoch, u64)>, Failure> {
    if epoch.is_some() != since.is_some() {
        let message = "since means something within an epoch only: give both, or neither";
        return Err(Failure::invalid("since", message));
    }
    Ok(epoch.zip(since))
}

/// Parses a time to wait, in milliseconds, up to [`MAX_WAIT`]. `name` is the parameter's name, for an error.
pub(super) fn wait(name: &str, value: &str) -> Result<Duration, Failure> {
    let limit = u64::try_from(MAX_WAIT.as_millis()).unwrap_or(u64::MAX);
    Ok(Duration::from_millis(number(name, value, 0..=limit)?))
}

pub(super) fn number(name: &str, value: &str, range: RangeInclusive<u64>) -> Result<u64, Failure> {
    match value.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => {
            let got = clip(value);
            let (least, most) = range.into_inner();
            let message =
                format!("{name} must be a whole number from {least} to {most}, got {got:?}");
            Err(Failure::invalid(name, message))
        }
    }
}

pub(super) fn read<T: FromStr<Err: Display>>(name: &str, value: &str) -> Result<T, Failure> {
    value
        .parse()
        .map_err(|error| Failure::invalid(name, format!("{name}: {error}, got {:?}", clip(value))))
}
