//! Matches a request's path to a route if salts are off, and extracts the model from it.
//!
//! Many engines decode `%` escapes before they compare a path, so escapes are decoded here too. A path that matches no
//! route is merely not ordered; if salts are on, [`listed`](super::listed) decides instead.
//!
//! ```text
//!   route   /model/{model}/converse              /v1beta/models/{model}:generateContent
//!   path    /model/us.claude-v1%3A0/converse     /v1beta/models/gemini-2.5-pro:generateContent
//!   model          us.claude-v1:0                               gemini-2.5-pro
//! ```

use std::borrow::Cow;

use foreword_ordering::hexadecimal;

/// Returns the first of `routes` that `path` matches, and the text that matched `{model}` (`None` if the route has
/// none). The outer `None` means that no route matches.
pub(super) fn route_of<'c>(
    path: &[u8],
    routes: &'c [String],
) -> Option<(&'c String, Option<String>)> {
    routes
        .iter()
        .find_map(|route| Some((route, matched(path, route)?)))
}

/// Returns the text that matched `{model}`, or `None` if `route` has no such part. The outer `None` means that `path`
/// does not match `route`.
fn matched(path: &[u8], route: &str) -> Option<Option<String>> {
    if !route.contains('{') {
        return (*decoded(path)? == *route.as_bytes()).then_some(None);
    }
    let mut model = None;
    let mut parts = path.split(|byte| *byte == b'/');
    for wanted in route.split('/') {
        let part = decoded(parts.next()?)?;
        let pattern = wanted.split_once('{');
        let Some((before, (name, behind))) =
            pattern.and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        else {
            if *part != *wanted.as_bytes() {
                return None;
            }
            continue;
        };
        let part = part.strip_prefix(before.as_bytes())?;
        let part = part.strip_suffix(behind.as_bytes())?;
        let part = std::str::from_utf8(part).ok()?;
        if part.is_empty() || part.contains(char::is_control) {
            return None;
        }
        if name == "model" {
            model = Some(part.to_owned());
        }
    }
    parts.next().is_none().then_some(model)
}

/// Decodes the `%` escapes in a path; `None` if one is invalid.
fn decoded(path: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !path.contains(&b'%') {
        return Some(Cow::Borrowed(path));
    }
    let mut all = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, behind @ ..] = rest {
        let (byte, behind) = match (first, behind) {
            (b'%', [high, low, behind @ ..]) => (hexadecimal::byte([*high, *low])?, behind),
            (b'%', _) => return None,
            (byte, behind) => (*byte, behind),
        };
        all.push(byte);
        rest = behind;
    }
    Some(Cow::Owned(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str) -> Option<(String, Option<String>)> {
        let routes = [
            "/v1/responses",
            "/v1beta/models/{model}:generateContent",
            "/v1/projects/{project}/models/{model}:generateContent",
            "/model/{model}/converse",
        ]
        .map(str::to_owned);
        route_of(path.as_bytes(), &routes).map(|(route, model)| (route.clone(), model))
    }

    #[test]
    fn a_path_names_its_route_and_its_model() {
        for (path, route, model) in [
            ("/v1/responses", 0, None),
            ("/v1/%72esponses", 0, None),
            (
                "/v1beta/models/gemini-2.5-pro:generateContent",
                1,
                Some("gemini-2.5-pro"),
            ),
            ("/v1beta/models/a:b:generateContent", 1, Some("a:b")),
            ("/v1/projects/p/models/g%3AgenerateContent", 2, Some("g")),
            (
                "/model/anthropic.claude-v1%3A0/converse",
                3,
                Some("anthropic.claude-v1:0"),
            ),
            ("/model/arn%3Aaws%2Fx/%63onverse", 3, Some("arn:aws/x")),
        ] {
            let routes = [
                "/v1/responses",
                "/v1beta/models/{model}:generateContent",
                "/v1/projects/{project}/models/{model}:generateContent",
                "/model/{model}/converse",
            ];
            let expected = (routes[route].to_owned(), model.map(str::to_owned));
            assert_eq!(found(path), Some(expected), "{path}");
        }
    }

    #[test]
    fn another_path_is_no_route() {
        for path in [
            "/v1/responses/",
            "/v1/responses/resp_1",
            "/v1/respons%",
            "/v1/respons%6",
            "/v1/respons%zz",
            "/v1beta/models/:generateContent",
            "/v1beta/models/a:countTokens",
            "/v1beta/models/a/b:generateContent",
            "/model//converse",
            "/model/a/b/converse",
            "/model/a%0Ab/converse",
            "/model/a%ff/converse",
            "/model/a/converse/",
            "/model/a",
            "",
        ] {
            assert_eq!(found(path), None, "{path}");
        }
    }
}
