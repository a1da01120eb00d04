//! Prices of prompts by model.

use foreword_ordering::cuts::{CacheKind, CacheRules};

/// The price of a model's prompts, and the rules of its cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachePrice {
    /// The rules, with prices relative to a plain token's.
    pub rules: CacheRules,
    /// Price of a million plain tokens.
    pub input: f64,
}

/// Prices by model and kind of cache.
#[derive(Clone, Debug)]
pub struct CachePrices {
    /// The currency; `million tokens` in the published prices, where a million plain tokens cost 1.
    pub currency: String,
    /// Prices by kind of cache and part of a model's name; of several parts that a name contains, the longest applies.
    pub models: Vec<(CacheKind, String, CachePrice)>,
}

impl CachePrice {
    /// Returns the published rules for a model with that kind of cache, and a price of 1 per million tokens.
    pub(super) fn published(kind: CacheKind, model: &str) -> Self {
        Self {
            rules: kind.rules(model),
            input: 1.0,
        }
    }
}

impl CachePrices {
    /// Returns the providers' published rules and relative prices, with a million plain tokens as the currency.
    #[must_use]
    pub fn published() -> Self {
        Self {
            currency: "million tokens".to_owned(),
            models: Vec::new(),
        }
    }

    /// Returns the price of a model with that kind of cache. An unlisted model has the published rules, and a price of
    /// 1 per million tokens.
    #[must_use]
    pub fn of(&self, kind: CacheKind, model: &str) -> CachePrice {
        let listed = self.listed(Some(kind), model);
        listed.unwrap_or_else(|| CachePrice::published(kind, model))
    }

    /// Returns the listed price of a model with that kind of cache, or of any kind; `None` if there is none.
    #[must_use]
    pub fn listed(&self, kind: Option<CacheKind>, model: &str) -> Option<CachePrice> {
        let listed = self.models.iter();
        let listed = listed
            .filter(|(of, name, _)| kind.is_none_or(|kind| *of == kind) && model.contains(&**name));
        let (.., price) = listed.max_by_key(|(_, name, _)| name.len())?;
        Some(*price)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_wins_and_others_have_the_published_rules() {
        let kind = CacheKind::Anthropic;
        let price = |input| CachePrice {
            rules: kind.rules("claude-opus-5-5"),
            input,
        };
        let prices = CachePrices {
            currency: "USD".into(),
            models: vec![
                (kind, "opus-5-5".into(), price(4.0)),
                (kind, "opus-5".into(), price(5.0)),
                (CacheKind::OpenAi, "opus-5-5-turbo".into(), price(9.0)),
            ],
        };
        assert_eq!(prices.of(kind, "claude-opus-5-5-turbo").input, 4.0);
        assert_eq!(prices.of(kind, "claude-opus-5-1").input, 5.0);
        let other = prices.of(kind, "claude-sonnet-5");
        assert_eq!(
            (other.input, other.rules),
            (1.0, kind.rules("claude-sonnet-5"))
        );
    }
}
