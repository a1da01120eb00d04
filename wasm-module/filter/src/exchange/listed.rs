//! Checks requests if salts are on: only those on two lists of exact paths are forwarded.
//!
//! Engines interpret unusual paths in different ways. Starlette, on which vLLM and SGLang are built, treats
//! `/v1/chat/completions%0A` as `/v1/chat/completions`; others fold slashes, case or parameters. So no rule here
//! guesses which spellings mean a route. A path is compared byte by byte, without its query, and a path on neither list
//! is refused, since its request could carry a prompt with a salt of the client's own.
//!
//! | method | on `routes` | on `salt.open_paths` | elsewhere |
//! | --- | --- | --- | --- |
//! | `POST` | is read, and forwarded with the salt; 403 if an engine may not separate salts | 405 | 404 |
//! | `GET`, `HEAD` | 405 | forwarded if it has no body | 404 |
//! | `OPTIONS` | forwarded if it has no body | forwarded if it has no body | 404 |
//! | any other, `CONNECT` too | 405 | 405 | 404 |
//! | with `Upgrade` (HTTP/2's extended `CONNECT` too) | 400 | 400 | 404 |
//!
//! So every request with a body carries the gateway's salt. A header that names another path or method
//! (`X-HTTP-Method-Override`, `X-Original-URL`) makes no difference: its body has the gateway's salt, or it has none.

use thiserror::Error;

/// The properties of a request that decide whether it may be forwarded while cache salts are on: parts of its headers,
/// and the presence of a body.
pub(super) struct RequestHead<'h> {
    pub(super) method: &'h [u8],
    /// The request's path, without its query.
    pub(super) path: &'h [u8],
    /// True if a body or trailers follow the headers.
    pub(super) has_body: bool,
    /// True if the client asks to switch the connection to another protocol, which the filter cannot read.
    pub(super) upgrades: bool,
}

/// The kinds of requests that are forwarded while cache salts are on, by the paths in `routes` and `salt.open_paths`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Listed<'c> {
    /// A `POST` to this route: its body is read, processed, and forwarded with the tenant's cache salt.
    Processed(&'c str),
    /// A request without a body, so it carries no prompt. It is forwarded unprocessed.
    WithoutPrompt,
}

/// The reason why a request is refused while cache salts are on. No error text contains the client's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Unlisted {
    /// The path is neither a route nor one of the paths of requests without a prompt.
    #[error(
        "the gateway serves no such path; it compares paths byte by byte, without escapes, double slashes or a final slash"
    )]
    Path,
    /// The gateway serves the path, but not with this method.
    #[error("the gateway serves this path with other methods: {allowed}")]
    Method {
        /// The value of the response header `allow`.
        allowed: &'static str,
    },
    /// The path is a route on which an engine is not known to separate tenants' caches by salt.
    #[error(
        "the gateway does not serve this path: the engine is not known to keep tenants' caches apart there (`engines[].salts` says where)"
    )]
    Unsalted,
    /// The request has a body, but the gateway reads none for this path and method.
    #[error("the gateway serves this path without a body, and the request has one")]
    Body,
    /// The request asks to switch the connection to another protocol.
    #[error("the gateway serves this path without `upgrade`")]
    Upgrade,
}

impl RequestHead<'_> {
    /// Returns how the request is forwarded, or why it is refused. `routes` are the paths whose bodies are processed,
    /// `open_paths` those of requests without a prompt, and `unsalted` the routes on which an engine may ignore salts.
    pub(super) fn listed<'c>(
        &self,
        routes: &'c [String],
        open_paths: &[String],
        unsalted: &[String],
    ) -> Result<Listed<'c>, Unlisted> {
        let is_this = |listed: &&String| listed.as_bytes() == self.path;
        let route = routes.iter().find(is_this);
        if route.is_none() && !open_paths.iter().any(|open| is_this(&open)) {
            return Err(Unlisted::Path);
        }
        if self.upgrades {
            return Err(Unlisted::Upgrade);
        }
        match (route, self.method) {
            (Some(route), b"POST") if unsalted.contains(route) => return Err(Unlisted::Unsalted),
            (Some(route), b"POST") => return Ok(Listed::Processed(route)),
            (None, b"GET" | b"HEAD") | (_, b"OPTIONS") => {}
            (Some(_), _) => return Err(Unlisted::Method { allowed: WATCHED }),
            (None, _) => return Err(Unlisted::Method { allowed: OPEN }),
        }
        if self.has_body {
            return Err(Unlisted::Body);
        }
        Ok(Listed::WithoutPrompt)
    }
}

impl Unlisted {
    /// The names of all reasons why a request may be refused while cache salts are on, in kebab case.
    pub(crate) const REASONS: [&'static str; 5] = [
        "unlisted-path",
        "unlisted-method",
        "unsalted-route",
        "unread-body",
        "upgrade",
    ];

    /// Returns the reason in kebab case, for the response header and the access log.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Path => "unlisted-path",
            Self::Method { .. } => "unlisted-method",
            Self::Unsalted => "unsalted-route",
            Self::Body => "unread-body",
            Self::Upgrade => "upgrade",
        }
    }

    pub(crate) fn status(self) -> u16 {
        match self {
            Self::Path => 404,
            Self::Unsalted => 403,
            Self::Method { .. } => 405,
            Self::Body | Self::Upgrade => 400,
        }
    }

    /// Returns the value of the header `allow` for a 405 response; `None` if the reason has another status.
    pub(crate) fn allowed_methods(self) -> Option<&'static str> {
        match self {
            Self::Method { allowed } => Some(allowed),
            Self::Path | Self::Unsalted | Self::Body | Self::Upgrade => None,
        }
    }
}

const WATCHED: &str = "POST, OPTIONS";
const OPEN: &str = "GET, HEAD, OPTIONS";

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, path: &str, has_body: bool) -> Result<String, Unlisted> {
        let lists = [["/v1/chat/completions"], ["/v1/models"]]
            .map(|paths| paths.map(str::to_owned).to_vec());
        let asked = RequestHead {
            method: method.as_bytes(),
            path: path.as_bytes(),
            has_body,
            upgrades: false,
        };
        let listed = asked.listed(&lists[0], &lists[1], &[])?;
        Ok(format!("{listed:?}"))
    }

    #[test]
    fn a_listed_path_goes_on_with_its_own_methods_alone() {
        let watched = Unlisted::Method { allowed: WATCHED };
        let open = Unlisted::Method { allowed: OPEN };
        let without = || Ok("WithoutPrompt".to_owned());
        for (method, on_routes, on_open_paths) in [
            (
                "POST",
                Ok(r#"Processed("/v1/chat/completions")"#.to_owned()),
                Err(open),
            ),
            ("GET", Err(watched), without()),
            ("HEAD", Err(watched), without()),
            ("OPTIONS", without(), without()),
            ("PUT", Err(watched), Err(open)),
            ("post", Err(watched), Err(open)),
            ("get", Err(watched), Err(open)),
            ("CONNECT", Err(watched), Err(open)),
            ("", Err(watched), Err(open)),
        ] {
            assert_eq!(
                asked(method, "/v1/chat/completions", false),
                on_routes,
                "{method}"
            );
            assert_eq!(
                asked(method, "/v1/models", false),
                on_open_paths,
                "{method}"
            );
            assert_eq!(asked(method, "/v1/completions", false), Err(Unlisted::Path));
        }
    }

    #[test]
    fn every_reason_is_among_the_reasons() {
        for unlisted in [
            Unlisted::Path,
            Unlisted::Method { allowed: OPEN },
            Unlisted::Unsalted,
            Unlisted::Body,
            Unlisted::Upgrade,
        ] {
            assert!(
                Unlisted::REASONS.contains(&unlisted.reason()),
                "{unlisted:?}"
            );
        }
    }

    #[test]
    fn what_is_not_read_has_no_body() {
        for (method, path) in [
            ("GET", "/v1/models"),
            ("HEAD", "/v1/models"),
            ("OPTIONS", "/v1/models"),
            ("OPTIONS", "/v1/chat/completions"),
        ] {
            assert_eq!(
                asked(method, path, true),
                Err(Unlisted::Body),
                "{method} {path}"
            );
        }
    }

    #[test]
    fn a_listed_path_may_not_become_another_protocol() {
        let routes = ["/a".to_owned()];
        for (method, path) in [("POST", "/a"), ("GET", "/a"), ("GET", "/b")] {
            let asked = RequestHead {
                method: method.as_bytes(),
                path: path.as_bytes(),
                has_body: false,
                upgrades: true,
            };
            let listed = asked.listed(&routes, &["/b".to_owned()], &[]);
            assert_eq!(listed, Err(Unlisted::Upgrade), "{method} {path}");
        }
    }
}
