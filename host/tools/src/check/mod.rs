//! `foreword check-config`: checks whether the gateway's filter would accept its configuration, without a gateway.
//!
//! ```text
//!   file ──► YAML or JSON documents ──► find: the plugin configurations in them
//!                                             │
//!            schema: every error ◄────────────┤
//!            the filter itself: the rest ◄────┘
//! ```
//!
//! It also warns of a chain of filters in which Envoy loses bytes (`chain`), and refuses a gateway that fails open if a
//! configuration has salts (`fail_open`). An error states path, value and allowed values; for fields that may contain a
//! secret, no value. It does not read the environment, so it cannot check that a key is set.

mod chain;
mod fail_open;
mod find;

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use foreword_filter::{Config, SCHEMA};
use jsonschema::error::ValidationErrorKind;
use jsonschema::{ValidationError, Validator};
use serde_json::Value;

/// The result of checking the configurations in all given files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The filter would accept every configuration.
    Accepted,
    /// At least one of these is true:
    /// (1) The filter would refuse a configuration.
    /// (2) A configuration has salts and a gateway fails open (lets requests bypass Foreword while it is unavailable),
    /// unless `--accept-fail-open` is given.
    Refused,
}

const HELP: &str = "Every error is told, with path, value and limit. A key in the environment is not looked for.

Exit codes: 0 the filter takes every configuration, 1 it refuses one, 2 a file cannot be read or holds none.";

/// The command-line options of `foreword check-config`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// File with the plugin's JSON, or with what contains it: Envoy's configuration, Istio's or Envoy Gateway's
    /// resources, a ConfigMap; `-`: standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Accept a gateway that lets requests past Foreword while it is away, beside a configuration with salts; the files
    /// of both are given together
    #[arg(long)]
    accept_fail_open: bool,
}

/// Checks the configurations in the files (`-`: standard input) and prints their errors to standard output. A gateway
/// that fails open (lets requests bypass Foreword while it is unavailable) is refused if any configuration has salts,
/// unless `--accept-fail-open` is given.
///
/// # Errors
/// Returns an error if a file cannot be read, or contains no configuration.
pub fn run(options: &Options) -> anyhow::Result<Verdict> {
    let schema: Value = serde_json::from_str(SCHEMA)?;
    let validator = jsonschema::validator_for(&schema)?;
    let mut verdict = Verdict::Accepted;
    let (mut is_salted, mut open) = (false, Vec::new());
    for file in &options.files {
        let text = read(file)?;
        let failures = fail_open::failures(&text);
        let settings = failures.open.into_iter();
        open.extend(settings.map(|setting| format!("{}: {setting}", file.display())));
        let configurations = match find::configurations(&text) {
            // An external processor's configuration is in a file of its own.
            Err(_) if failures.has_setting => Vec::new(),
            configurations => {
                configurations.with_context(|| format!("cannot read {}", file.display()))?
            }
        };
        for found in configurations {
            let config = Config::from_json(found.configuration.as_bytes());
            is_salted |= config.is_ok_and(|config| config.salt.is_some());
            let errors = errors(&schema, &validator, &found.configuration);
            let place = match found.place.as_str() {
                "" => file.display().to_string(),
                place => format!("{}: {place}", file.display()),
            };
            println!("{place}: {}", judged(&errors));
            if !errors.is_empty() {
                verdict = Verdict::Refused;
            }
            for warning in unsalted(&found.configuration) {
                println!("{place}: warning: {warning}");
            }
        }
        for warning in chain::warnings(&text) {
            println!("{}: warning: {warning}", file.display());
        }
    }
    for setting in open.iter().filter(|_| is_salted) {
        let severity = match options.accept_fail_open {
            true => "warning",
            false => "error",
        };
        println!(
            "{setting}: {severity}: with `salt`, requests would reach the engine with a salt of the client's own while Foreword is away"
        );
        if !options.accept_fail_open {
            verdict = Verdict::Refused;
        }
    }
    Ok(verdict)
}

fn read(file: &Path) -> anyhow::Result<String> {
    let context = || format!("cannot read {}", file.display());
    if file == Path::new("-") {
        let mut text = String::new();
        let mut input = std::io::stdin().take(MAX_FILE_BYTES);
        input.read_to_string(&mut text).with_context(context)?;
        return Ok(text);
    }
    let bytes = std::fs::metadata(file).with_context(context)?.len();
    if bytes > MAX_FILE_BYTES {
        bail!(
            "{} has {bytes} bytes; the limit is {MAX_FILE_BYTES}",
            file.display()
        );
    }
    std::fs::read_to_string(file).with_context(context)
}

/// Returns a line that says whether the filter accepts a configuration with these errors, followed by a line for each
/// error.
fn judged(errors: &[String]) -> String {
    let mut text = match errors.len() {
        0 => "the filter takes this configuration".to_owned(),
        1 => "the filter refuses this configuration, 1 error".to_owned(),
        count => format!("the filter refuses this configuration, {count} errors"),
    };
    for error in errors {
        let _ = write!(text, "\n  {error}");
    }
    text
}

/// Returns a warning for each route of the configuration on which the filter refuses requests: salts are configured,
/// but no engine is configured to separate its cache by salt on that route.
fn unsalted(configuration: &str) -> Vec<String> {
    let config = Config::from_json(configuration.as_bytes());
    let routes = config.map(|config| config.unsalted_routes);
    let routes = routes.unwrap_or_default();
    let warning = |route: &String| {
        format!(
            "POST {route} gets 403: `salt` needs engines that keep caches of different `cache_salt`s apart there. If yours does \
             (tests/python/salts.py asks it), put the path into its `engines[].salts`; else take it out of `routes`"
        )
    };
    routes.iter().map(warning).collect()
}

/// Returns all violations of the JSON schema in a configuration; if there are none, the first error of the filter's own
/// parser, if any.
fn errors(schema: &Value, validator: &Validator, configuration: &str) -> Vec<String> {
    let told = |errors: Vec<String>| match Config::from_json(configuration.as_bytes()) {
        Err(error) if errors.is_empty() => vec![error.to_string()],
        _ => errors,
    };
    match serde_json::from_str::<Value>(configuration) {
        // An empty configuration means the defaults.
        Err(_) => told(Vec::new()),
        Ok(value) => {
            let errors = validator.iter_errors(&value);
            told(errors.map(|error| in_words(schema, &error)).collect())
        }
    }
}

/// Returns an error of the JSON schema as text: the path, the value, and the allowed values. Values that may be secret
/// are left out.
fn in_words(schema: &Value, error: &ValidationError<'_>) -> String {
    let pointer = error.instance_path().as_str();
    let path = match pointer.trim_start_matches('/').replace('/', ".") {
        path if path.is_empty() => "the configuration".to_owned(),
        path => path,
    };
    // These fields contain keys and tokens, and so may a misspelt field within them.
    let is_secret =
        (path.split('.')).any(|part| ["salt", "feed", "retrieval", "engines"].contains(&part));
    let keyword = error.schema_path().as_str();
    let (part, _) = keyword.rsplit_once('/').unwrap_or_default();
    let part = schema.pointer(part).unwrap_or(&Value::Null);
    match (error.kind(), part["x-allowed"].as_str()) {
        (ValidationErrorKind::AdditionalProperties { unexpected }, _) if !is_secret => {
            let known = part["properties"].as_object().into_iter().flatten();
            let known: Vec<&str> = known.map(|(name, _)| name.as_str()).collect();
            let (unexpected, known) = (unexpected.join("`, `"), known.join(", "));
            format!("{path}: there is no `{unexpected}`, only {known}")
        }
        (ValidationErrorKind::Enum { options }, None) if !is_secret => {
            let options = options.as_array().into_iter().flatten();
            let options: Vec<String> = options.map(Value::to_string).collect();
            let (value, options) = (quoted(error.instance()), options.join(", "));
            format!("{path}: {value} is not one of {options}")
        }
        (_, Some(allowed)) if is_secret => format!("{path}: what stands there is not {allowed}"),
        (_, Some(allowed)) => format!("{path}: {} is not {allowed}", quoted(error.instance())),
        (_, None) if is_secret => format!("{path}: {}", error.masked()),
        (_, None) => format!("{path}: {}", short(&error.to_string())),
    }
}

fn quoted(value: &Value) -> String {
    short(&value.to_string())
}

fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

const MAX_FILE_BYTES: u64 = 16 << 20;
const MAX_QUOTED_CHARS: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    fn told(configuration: &str) -> Vec<String> {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        errors(&schema, &validator, configuration)
    }

    #[test]
    fn every_error_is_told_with_path_value_and_limit() {
        let mut errors = told(
            r#"{"max_body_bytes": 0, "routes": ["v1", "/ok"], "on_failure": "drop", "colour": 1,
                "report_header": "host", "ordering": {"tree": {"max_nodes": 10000001}, "hint": {"label": "x"}}}"#,
        );
        errors.sort();
        let expected = [
            ("max_body_bytes: ", "0 is less than the minimum of 1"),
            ("on_failure: ", r#""drop" is not one of "pass", "refuse""#),
            (
                "ordering.hint.label: ",
                r#""x" is not a text that contains `{label}` once"#,
            ),
            (
                "ordering.tree.max_nodes: ",
                "10000001 is greater than the maximum of 10000000",
            ),
            ("report_header: ", r#""host" is not a header name"#),
            ("routes.0: ", r#""v1" is not a path"#),
            (
                "the configuration: ",
                "there is no `colour`, only routes, max_body_bytes, ",
            ),
        ];
        assert_eq!(errors.len(), expected.len(), "{errors:#?}");
        for (error, (path, words)) in errors.iter().zip(expected) {
            assert!(error.starts_with(path) && error.contains(words), "{error}");
        }
    }

    #[test]
    fn what_a_schema_cannot_say_the_filter_says() {
        assert!(told(r#"{"path_header": "x-foreword"}"#)[0].contains("must differ"));
        assert!(told(r#"{"max_body_bytes": 4.0}"#)[0].contains("max_body_bytes: 4.0"));
        assert!(told(r#"{"mode": "order", "mode": "order"}"#)[0].contains("duplicate field"));
        assert!(told("[]")[0].contains("object"));
        for fine in ["", " ", "{}", r#"{"ordering": {"policy": "foresight"}}"#] {
            assert_eq!(told(fine), [""; 0], "{fine}");
        }
    }

    #[test]
    fn a_route_that_salts_are_not_known_to_work_on_is_warned_of() {
        let salted = |engines: &str| {
            unsalted(&format!(
                r#"{{"tenant": {{"header": "t"}}, "salt": {{"key_env": "K"}}{engines}}}"#
            ))
        };
        let warned = salted("");
        assert!(
            warned.len() == 1 && warned[0].starts_with("POST /v1/messages gets 403"),
            "{warned:?}"
        );
        let all = r#", "engines": [{"name": "a", "salts": ["/v1/chat/completions", "/v1/messages", "/v1/responses"]}]"#;
        assert_eq!(salted(all), [""; 0]);
        assert_eq!(unsalted("{}"), [""; 0]);
    }

    #[test]
    fn salts_beside_a_gateway_that_fails_open_are_refused_unless_that_is_accepted() {
        let folder = std::env::temp_dir().join(format!("foreword-check-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let salted = file(
            "salted.json",
            r#"{"tenant": {"header": "t"}, "salt": {"key_env": "K"}}"#,
        );
        let plain = file("plain.json", "{}");
        let gateway = |mode: &str| {
            file(
                mode,
                &format!("kind: AgentgatewayPolicy\nspec: {{failureMode: {mode}}}\n"),
            )
        };
        let (open, closed) = (gateway("FailOpen"), gateway("FailClosed"));
        for (files, accepts, verdict) in [
            ([&salted, &open], false, Verdict::Refused),
            ([&open, &salted], false, Verdict::Refused),
            ([&salted, &open], true, Verdict::Accepted),
            ([&salted, &closed], false, Verdict::Accepted),
            ([&plain, &open], false, Verdict::Accepted),
        ] {
            let options = Options {
                files: files.map(Clone::clone).to_vec(),
                accept_fail_open: accepts,
            };
            assert_eq!(run(&options).unwrap(), verdict, "{options:?}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_token_is_never_shown() {
        for feed in [
            r#"{"cluster": "c", "token": "5ecre7\n"}"#,
            r#"{"cluster": "c", "tokens": "5ecre7"}"#,
            r#"{"token": "5ecre7"}"#,
            r#""5ecre7""#,
        ] {
            let errors = told(&format!(
                r#"{{"engines": [{{"name": "a", "feed": {feed}}}]}}"#
            ));
            assert!(
                !errors.is_empty() && !errors.concat().contains("5ecre7"),
                "{errors:?}"
            );
            assert!(errors[0].starts_with("engines.0"), "{errors:?}");
        }
        for retrieval in [
            r#"{"cluster": "c", "token": "5ecre7\n"}"#,
            r#"{"cluster": "c", "tokens": "5ecre7"}"#,
            r#""5ecre7""#,
        ] {
            let errors = told(&format!(r#"{{"retrieval": {retrieval}}}"#));
            assert!(
                !errors.is_empty() && !errors.concat().contains("5ecre7"),
                "{errors:?}"
            );
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let secret = "5ecre7".repeat(9);
        for salt in [
            format!(r#"{{"key": "{secret}"}}"#),
            format!(r#"{{"key": ["{secret}"]}}"#),
            format!(r#"{{"key": "{secret}", "key_env": "{secret}"}}"#),
            format!(r#"{{"keys": "{secret}"}}"#),
            format!(r#"{{"{secret}": 1}}"#),
            format!(r#""{secret}""#),
        ] {
            for tenant in [r#"{"header": "t"}"#, "null"] {
                let errors = told(&format!(r#"{{"tenant": {tenant}, "salt": {salt}}}"#));
                assert!(
                    !errors.is_empty() && !errors.concat().contains("5ecre7"),
                    "{errors:?}"
                );
                assert!(errors.concat().contains("salt"), "{errors:?}");
            }
        }
    }
}
