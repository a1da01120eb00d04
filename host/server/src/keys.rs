//! The API keys that a server accepts.

use anyhow::{Context, bail};
use axum::http::{HeaderMap, header};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// A set of accepted keys. The time of a look-up reveals nothing about the keys: the set's hash is keyed at random, so
/// no prefix of a guess is better than another.
#[derive(Clone)]
pub struct ApiKeys(Arc<HashMap<Vec<u8>, usize>>);

impl ApiKeys {
    /// Reads a file with one key per line; blank lines and lines that begin with `#` do not count.
    ///
    /// # Errors
    /// Returns an error when the file cannot be read or contains no key, since a server that was told to require keys
    /// must not open without.
    pub fn load(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the API keys in {}", file.display()))?;
        let keys = Self::parse(&text);
        if keys.0.is_empty() {
            bail!("{} holds no API key", file.display());
        }
        Ok(keys)
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim);
        let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self::of(keys.map(str::as_bytes))
    }

    /// Returns a set of these keys, numbered from 0, each once.
    pub fn of<'k>(keys: impl IntoIterator<Item = &'k [u8]>) -> Self {
        let mut numbered = HashMap::new();
        for key in keys {
            let number = numbered.len();
            numbered.entry(key.to_vec()).or_insert(number);
        }
        Self(Arc::new(numbered))
    }

    /// Returns the set with one more key, which gets the next number unless it is in the set already.
    pub fn and(&self, key: &str) -> Self {
        let mut numbered = HashMap::clone(&self.0);
        let number = numbered.len();
        numbered.entry(key.as_bytes().to_vec()).or_insert(number);
        Self(Arc::new(numbered))
    }

    /// Returns the number of keys.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether `headers` carry one of the keys, as `Authorization: Bearer KEY` or, in Anthropic's manner, `x-api-key: KEY`.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        self.holder(headers).is_some()
    }

    /// Returns the number of the key that `headers` carry.
    pub fn holder(&self, headers: &HeaderMap) -> Option<usize> {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            let key = headers.get("x-api-key")?.as_bytes();
            return self.0.get(key.trim_ascii()).copied();
        };
        let (scheme, key) = value.as_bytes().split_at_checked(b"bearer ".len())?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return None;
        }
        self.0.get(key.trim_ascii()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn admitted(keys: &str, authorization: &'static str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::AUTHORIZATION,
            HeaderValue::from_static(authorization),
        );
        ApiKeys::parse(keys).admit(&headers)
    }

    #[test]
    fn any_line_of_the_file_is_a_key() {
        let keys = "# staff\nalpha\n\n  beta  \n";
        assert!(admitted(keys, "Bearer alpha"));
        assert!(admitted(keys, "bearer beta"));
    }

    #[test]
    fn nothing_else_is() {
        let keys = "# staff\nalpha\n";
        for sent in [
            "Bearer alph",
            "Bearer alphaa",
            "Bearer",
            "Bearer ",
            "Basic alpha",
            "alpha",
            "Bearer # staff",
        ] {
            assert!(!admitted(keys, sent), "{sent}");
        }
        assert!(!ApiKeys::parse(keys).admit(&HeaderMap::new()));
    }

    #[test]
    fn a_file_without_keys_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# none yet\n").unwrap();
        assert!(ApiKeys::load(file.path()).is_err());
        assert!(ApiKeys::load(Path::new("no/such/file")).is_err());
    }
}
