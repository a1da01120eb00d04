//! The API keys that a server accepts.

use anyhow::{Context, bail};
use axum::http::{HeaderMap, HeaderValue, header};
use foreword_ordering::feed::TenantKey;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// A set of accepted API keys, each with a number. The duration of a look-up reveals nothing about the keys: the set's
/// hasher is seeded at random, so a guess that shares a prefix with a key takes no longer.
#[derive(Clone)]
pub struct ApiKeys(Arc<HashMap<Vec<u8>, usize>>);

impl ApiKeys {
    /// Reads a file with one key per line; blank lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or contains no key, since a server configured to require keys must
    /// not run without.
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

    /// Returns a set of these keys. They are numbered from 0 in their order; a key that occurs again is skipped.
    pub fn of<'k>(keys: impl IntoIterator<Item = &'k [u8]>) -> Self {
        let mut numbered = HashMap::new();
        for key in keys {
            let number = numbered.len();
            numbered.entry(key.to_vec()).or_insert(number);
        }
        Self(Arc::new(numbered))
    }

    /// Returns a copy of the set that also accepts `key`. The key's number is the number of keys so far; if the set
    /// already has the key, its number stays.
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

    /// Returns whether `headers` contain one of the keys, as `Authorization: Bearer KEY` or, as in Anthropic's API,
    /// `x-api-key: KEY`. If both contain one, the first counts.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        self.holder(headers).is_some()
    }

    /// Returns the number of the accepted key in `headers`; `None` if they contain none.
    pub fn holder(&self, headers: &HeaderMap) -> Option<usize> {
        self.accepted(headers).map(|(_, number)| number)
    }

    /// Returns a name for the accepted key in `headers` that does not change when other keys are added or removed: 128
    /// bits of its SHA-256. `None` if `headers` contain no accepted key.
    pub fn name(&self, headers: &HeaderMap) -> Option<String> {
        self.accepted(headers).map(|(key, _)| name(key))
    }

    /// Returns the number of the key with this [name](Self::name); `None` if it is no longer accepted.
    pub fn number_of(&self, owner: &str) -> Option<usize> {
        let mut keys = self.0.iter();
        keys.find_map(|(key, number)| (name(key) == owner).then_some(*number))
    }

    /// Returns the accepted key in `headers` and its number; `None` if they contain none.
    fn accepted(&self, headers: &HeaderMap) -> Option<(&[u8], usize)> {
        let plain = headers.get("x-api-key").map(HeaderValue::as_bytes);
        let mut sent = bearer(headers).into_iter().chain(plain);
        let (key, number) = sent.find_map(|key| self.0.get_key_value(key.trim_ascii()))?;
        Some((key, *number))
    }
}

/// Returns the key in the header `authorization`; `None` if the header is absent or has a scheme other than `Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(b"bearer ".len())?;
    (scheme.eq_ignore_ascii_case(b"bearer ")).then_some(key)
}

fn name(key: &[u8]) -> String {
    TenantKey::of(&String::from_utf8_lossy(key)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keys_name_stays_when_other_keys_come_and_go() {
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", HeaderValue::from_static("beta"));
        let [some, more] = ["alpha\nbeta\n", "beta\ngamma\n"].map(ApiKeys::parse);
        let name = some.name(&headers).unwrap();
        assert!(!name.contains("beta"));
        assert_eq!(more.name(&headers).as_ref(), Some(&name));
        assert_eq!(
            (some.number_of(&name), more.number_of(&name)),
            (Some(1), Some(0))
        );
        assert_eq!(ApiKeys::parse("alpha").number_of(&name), None);
    }

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
    fn a_key_counts_beside_another_header_without_one() {
        let keys = ApiKeys::parse("alpha\nbeta\n");
        for (authorization, key, number) in [
            ("Basic alpha", "beta", Some(1)),
            ("Bearer gamma", "beta", Some(1)),
            ("Bearer alpha", "gamma", Some(0)),
            ("Bearer alpha", "beta", Some(0)),
            ("Bearer gamma", "delta", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(
                header::AUTHORIZATION,
                HeaderValue::from_static(authorization),
            );
            headers.insert("x-api-key", HeaderValue::from_static(key));
            assert_eq!(keys.holder(&headers), number, "{authorization}, {key}");
        }
    }

    #[test]
    fn a_file_without_keys_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# none yet\n").unwrap();
        assert!(ApiKeys::load(file.path()).is_err());
        assert!(ApiKeys::load(Path::new("no/such/file")).is_err());
    }
}
