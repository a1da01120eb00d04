//! Command-line options that several tools have: parsers of values, and readers of the environment variables and files
//! that options name.

use anyhow::{Context, Result, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::value_parser;
use foreword_ordering::{Config, RawConfig};
use foreword_simulation::BatchOrder;
use std::path::Path;
use std::time::Duration;

/// Returns a parser for a time limit in whole seconds, from 1 to `most`.
pub(crate) fn seconds(most: u64) -> impl TypedValueParser<Value = Duration> {
    value_parser!(u64).range(1..=most).map(Duration::from_secs)
}

/// Returns a parser for a wait in whole milliseconds, from 0 to 30,000.
pub(crate) fn backoff() -> impl TypedValueParser<Value = Duration> {
    let milliseconds = value_parser!(u64).range(0..=30_000);
    milliseconds.map(Duration::from_millis)
}

/// Returns a parser for a number of concurrent requests, from 1 to 1,024.
pub(crate) fn concurrency() -> impl TypedValueParser<Value = usize> {
    value_parser!(u16).range(1..=1_024).map(usize::from)
}

/// Returns a parser for the order in which a batch's requests are sent: `plan` or `input`.
#[must_use]
pub fn batch_order() -> impl TypedValueParser<Value = BatchOrder> {
    one_of(BatchOrder::ALL.map(|order| (order.name(), "", order)))
}

/// Returns a parser that accepts the names of `values` and yields the value of that name. Each entry is a name, a text
/// for the option's help (which may be empty), and the value.
#[must_use]
pub fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, &'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let shown = values.map(|(name, help, _)| match help {
        "" => PossibleValue::new(name),
        help => PossibleValue::new(name).help(help),
    });
    PossibleValuesParser::new(shown).try_map(move |name| {
        let found = values.iter().find(|(known, ..)| *known == name);
        found.map(|(.., value)| *value).ok_or("it has no value")
    })
}

/// Returns a parser that accepts the names of `all`, as `name` returns them, and yields the value of that name. The
/// error for any other text lists the names.
pub(crate) fn named<T: Copy, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let found = all.into_iter().find(|value| name(*value) == text);
        found.ok_or_else(|| format!("it must be one of {}", all.map(name).join(", ")))
    }
}

/// Returns the API key in the environment variable `name`; `None` if `name` is `None`.
///
/// # Errors
/// Returns an error that names `option`, the command-line option that gave `name`, if the variable is unset or empty.
pub(crate) fn api_key(option: &str, name: Option<&String>) -> Result<Option<String>> {
    let Some(name) = name else { return Ok(None) };
    match std::env::var(name) {
        Ok(key) if !key.is_empty() => Ok(Some(key)),
        _ => bail!("{option}: the environment has no {name}"),
    }
}

/// Reads and validates the gateway's ordering configuration (`ordering` of the plugin's configuration, in JSON) from
/// `file`; returns the default configuration if `file` is `None`.
///
/// # Errors
/// Returns an error that names the file if it cannot be read or is invalid.
pub fn ordering(file: Option<&Path>) -> Result<RawConfig> {
    let Some(file) = file else {
        return Ok(RawConfig::default());
    };
    let context = || gateway_configuration(file);
    let json = std::fs::read(file).with_context(context)?;
    let raw = RawConfig::from_json(&json).with_context(context)?;
    Config::try_from(raw.clone()).with_context(context)?;
    Ok(raw)
}

/// Returns the message for an error while reading the gateway's configuration in `file`.
pub(crate) fn gateway_configuration(file: &Path) -> String {
    let file = file.display();
    format!("cannot read the gateway's configuration in {file}")
}
