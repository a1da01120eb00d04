//! The API keys that a server accepts.

use anyhow::{Context, bail};
use axum::http::{HeaderMap, header};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// A set of accepted keys. Looking one up takes a time that tells nothing about the keys: the set's hash is keyed
/// at random, so no prefix of a guess is better than another.
#[derive(Clone)]
pub struct ApiKeys(Arc<HashSet<Vec<u8>>>);

impl ApiKeys {
    /// Reads a file with one key per line; blank lines and lines that begin with `#` do not count.
    ///
    /// # Errors
    /// When the file cannot be read or holds no key: a server that was told to ask for keys must not open without.
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
        Self(Arc::new(keys.map(|key| key.as_bytes().to_vec()).collect()))
    }

    /// Whether `headers` carry one of the keys as `Authorization: Bearer KEY`.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return false;
        };
        let Some((scheme, key)) = value.as_bytes().split_at_checked(b"bearer ".len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"bearer ") && self.0.contains(key.trim_ascii())
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
