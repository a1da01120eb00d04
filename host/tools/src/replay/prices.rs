//! Reads the file of prices of `--prices`.
//!
//! ```json
//! {"currency": "USD", "models": [{"name": "claude-opus-5-5", "kind": "anthropic", "input": 4.0, "read": 0.2}]}
//! ```
//!
//! Prices are per million tokens. Omitted fields follow from the published rules of `kind`, the provider's kind of
//! cache: the prices of reading and writing as factors of `input`, and the minimum number of tokens that are cached.

use anyhow::{Context, Result, bail, ensure};
use foreword_ordering::cuts::CacheKind;
use foreword_simulation::{CachePrice, CachePrices};
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    currency: String,
    models: Vec<Model>,
    /// The source of the prices, as a note for people who read the file; not used.
    #[serde(default, rename = "source")]
    _source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    name: String,
    kind: String,
    input: f64,
    read: Option<f64>,
    write: Option<f64>,
    write_long: Option<f64>,
    minimum_tokens: Option<u32>,
}

/// Reads the prices in `file`. Without a file, returns the providers' published rules and prices relative to a plain
/// token's: the unit of currency is the price of a million tokens that are neither read from the cache nor written to
/// it.
///
/// # Errors
/// Returns an error that names the file and the field if the file cannot be read or a price is invalid.
pub(crate) fn read(file: Option<&Path>) -> Result<CachePrices> {
    let Some(file) = file else {
        return Ok(CachePrices::published());
    };
    let read = || checked(serde_json::from_slice(&std::fs::read(file)?)?);
    read().with_context(|| format!("cannot read the prices in {}", file.display()))
}

fn checked(file: File) -> Result<CachePrices> {
    ensure!(!file.currency.is_empty(), "currency: it is empty");
    ensure!(!file.models.is_empty(), "models: there is none");
    let models = file.models.into_iter().enumerate();
    let models = models.map(|(at, model)| {
        let place = |field: &str| format!("models[{at}].{field}");
        let Some(kind) = CacheKind::by_name(&model.kind) else {
            let names = CacheKind::ALL.map(CacheKind::name).join(", ");
            bail!("{}: {:?} is not one of {names}", place("kind"), model.kind);
        };
        ensure!(!model.name.is_empty(), "{}: it is empty", place("name"));
        ensure!(
            model.input.is_finite() && model.input > 0.0,
            "{}: {} is not a price above 0",
            place("input"),
            model.input
        );
        let mut rules = kind.rules(&model.name);
        let factors = [
            ("read", model.read, &mut rules.read),
            ("write", model.write, &mut rules.write),
            ("write_long", model.write_long, &mut rules.write_long),
        ];
        for (field, price, factor) in factors {
            let Some(price) = price else { continue };
            ensure!(
                price.is_finite() && price >= 0.0,
                "{}: {price} is not a price",
                place(field)
            );
            *factor = price / model.input;
        }
        if let Some(tokens) = model.minimum_tokens {
            rules.minimum_tokens = tokens;
        }
        let input = model.input;
        Ok((kind, model.name, CachePrice { rules, input }))
    });
    Ok(CachePrices {
        currency: file.currency,
        models: models.collect::<Result<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(text: &str) -> Result<CachePrices> {
        checked(serde_json::from_str(text)?)
    }

    #[test]
    fn what_a_model_does_not_state_follows_from_its_kind() {
        let prices = prices(
            r#"{"currency":"USD","models":[{"name":"claude-opus-5-5","kind":"anthropic","input":4.0,"read":0.4}]}"#,
        )
        .unwrap();
        let price = prices.of(CacheKind::Anthropic, "claude-opus-5-5-20261001");
        assert_eq!((price.input, price.rules.read), (4.0, 0.1));
        assert_eq!((price.rules.write, price.rules.minimum_tokens), (1.25, 512));
    }

    #[test]
    fn a_wrong_price_is_named_with_its_place() {
        let one = |model: &str| format!(r#"{{"currency":"USD","models":[{model}]}}"#);
        for (text, words) in [
            (
                one(r#"{"name":"m","kind":"openai","input":0}"#),
                "models[0].input: 0 is not a price above 0",
            ),
            (
                one(r#"{"name":"m","kind":"claude","input":1}"#),
                "is not one of prefix, anthropic",
            ),
            (
                one(r#"{"name":"","kind":"openai","input":1}"#),
                "models[0].name",
            ),
            (
                one(r#"{"name":"m","kind":"openai","input":1,"read":-1}"#),
                "models[0].read: -1",
            ),
            (one(r#"{"name":"m","kind":"openai","inputs":1}"#), "inputs"),
            (one(""), "models: there is none"),
            (r#"{"currency":"","models":[]}"#.into(), "currency"),
        ] {
            let error = format!("{:#}", prices(&text).unwrap_err());
            assert!(error.contains(words), "{error} lacks {words}");
        }
    }

    #[test]
    fn the_example_is_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cache-prices.json");
        let prices = read(Some(&path)).unwrap();
        assert_eq!(prices.currency, "USD");
        let opus = prices.of(CacheKind::Anthropic, "claude-opus-5-5");
        assert_eq!((opus.input, opus.rules.minimum_tokens), (4.0, 512));
        assert!((opus.rules.read - 0.05).abs() < 1e-9);
    }
}
