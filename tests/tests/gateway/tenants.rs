//! Tenants in real Envoy: who says whose a request is, which salt the engine gets, and what one sees of another.

use foreword_tests::http::{Response, exchange, post_chunked, post_with};
use foreword_tests::{Gateway, GatewayOptions, Host, Shell, Upstream, artifacts};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::{assert_length, configured, tagged, with_array};

pub(crate) const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn salted(header: &str) -> Value {
    json!({"tenant": {"header": header}, "salt": {"key": KEY}})
}

fn ask(gateway: &Gateway, tenant: &str, body: &str) -> Response {
    let tenant = format!("x-tenant: {tenant}");
    let request = post_with(
        &["content-type: application/json", &tenant],
        body.as_bytes(),
    );
    exchange(gateway.address(), &request).unwrap()
}

/// The salt that the engine got last.
fn salt(upstream: &Upstream) -> String {
    let body: Value = serde_json::from_slice(&upstream.last().unwrap().body).unwrap();
    body["cache_salt"].as_str().unwrap().to_owned()
}

#[test]
fn every_request_reaches_the_engine_with_its_tenants_salt_whatever_the_client_sent() {
    let upstream = Upstream::start().unwrap();
    let gateway = configured(&upstream, salted("x-tenant"));
    let plain = r#"{"messages": [{"role": "user", "content": "hello"}], "seed": 1e3}"#;
    assert_eq!(ask(&gateway, "red", plain).status, 200);
    let red = salt(&upstream);
    let sent = upstream.last().unwrap().text();
    assert_eq!(
        sent.replacen(&format!("\"cache_salt\":\"{red}\","), "", 1),
        plain
    );

    assert_eq!(ask(&gateway, "blue", plain).status, 200);
    let blue = salt(&upstream);
    assert_ne!(red, blue);
    let forged = |body: &str| body.replacen('{', &format!("{{\"cache_salt\": \"{blue}\", "), 1);
    for body in [
        forged(plain),
        forged(plain).replace("cache_salt", "cache\\u005fsalt"),
        forged(&tagged(&["a", "b"])),
        forged(&tagged(&["b", "a"])),
        forged(&with_array(&["b", "a"])),
        forged(r#"{"messages": [], "documents": [1]}"#),
    ] {
        let response = ask(&gateway, "red", &body);
        assert_eq!(response.status, 200);
        let sent = upstream.last().unwrap().text();
        assert_eq!(salt(&upstream), red, "{sent}");
        assert!(!sent.contains(&blue), "{sent}");
        assert_length(&upstream);
    }
}

#[test]
fn with_salts_nothing_reaches_the_engine_unread() {
    let upstream = Upstream::start().unwrap();
    let mut plugin = salted("x-tenant");
    plugin["max_body_bytes"] = json!(10_000);
    let gateway = configured(&upstream, plugin);
    let tenant = "x-tenant: red";
    let json = "content-type: application/json";
    let large = tagged(&["a", &"b".repeat(20_000)]);
    let small = tagged(&["a", "b"]);
    let twice = small.replacen('{', r#"{"cache_salt": "x", "cache_salt": "y", "#, 1);
    for (request, status, reason) in [
        (post_with(&[json], small.as_bytes()), 403, "no-tenant"),
        (
            post_with(&[json, "x-tenant:"], small.as_bytes()),
            403,
            "no-tenant",
        ),
        (
            post_with(&[tenant, "x-tenant: blue", json], small.as_bytes()),
            403,
            "several-tenants",
        ),
        (
            post_with(&["x-tenant: red, blue", json], small.as_bytes()),
            403,
            "several-tenants",
        ),
        (
            post_with(
                &[tenant, json],
                small
                    .replacen('{', r#"{"session_params": {"id": "x"}, "#, 1)
                    .as_bytes(),
            ),
            400,
            "cache-field",
        ),
        (
            post_with(&[tenant, "content-type: text/plain"], small.as_bytes()),
            415,
            "not-json",
        ),
        (
            post_with(&[tenant, json, "content-encoding: gzip"], small.as_bytes()),
            415,
            "encoded",
        ),
        (
            post_with(&[tenant, json], large.as_bytes()),
            413,
            "too-large",
        ),
        (
            post_chunked(&[tenant, json], large.as_bytes(), 5_000, &[]),
            413,
            "too-large",
        ),
        (
            post_with(&[tenant, json], b"{\"messages\""),
            400,
            "invalid-json",
        ),
        (
            post_with(&[tenant, json], b"\xff\xfe{\x00}"),
            400,
            "invalid-utf8",
        ),
        (
            post_with(&[tenant, json], twice.as_bytes()),
            400,
            "invalid-json",
        ),
    ] {
        let response = exchange(gateway.address(), &request).unwrap();
        assert_eq!(
            (response.status, response.report()),
            (status, &*format!("refused; reason={reason}"))
        );
        assert_eq!(response.json().unwrap()["error"]["code"], reason);
    }
    assert!(upstream.received().is_empty());
    assert_eq!(gateway.failures().unwrap(), 0);
}

#[test]
fn released_headers_keep_salts_too() {
    let upstream = Upstream::start().unwrap();
    let mut plugin = salted("x-tenant");
    plugin["request_headers"] = json!("release");
    let options = GatewayOptions {
        plugin: Some(plugin),
        headers_may_wait: false,
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    let forged = tagged(&["a"]).replacen('{', r#"{"cache_salt": "x", "#, 1);
    assert_eq!(ask(&gateway, "red", &forged).status, 200);
    assert_eq!(salt(&upstream).len(), 64);
    let served = upstream.received().len();
    let refused = ask(&gateway, "red", "{\"cache_salt\": \"x\"");
    assert_eq!((refused.status, upstream.received().len()), (400, served));
}

#[test]
fn a_key_in_the_environment_derives_the_same_salts() {
    let salts = [
        (salted("x-tenant"), vec![]),
        (
            json!({"tenant": {"header": "x-tenant"}, "salt": {"key_env": "FOREWORD_SALT_KEY"}}),
            vec![("FOREWORD_SALT_KEY", KEY.to_owned())],
        ),
    ]
    .map(|(plugin, environment)| {
        let upstream = Upstream::start().unwrap();
        let options = GatewayOptions {
            plugin: Some(plugin),
            environment,
            ..GatewayOptions::placing_freely(upstream.address())
        };
        let gateway = Gateway::start(&options).unwrap();
        ask(&gateway, "red", &tagged(&["a"]));
        salt(&upstream)
    });
    assert_eq!(salts[0], salts[1]);

    let upstream = Upstream::start().unwrap();
    let options = GatewayOptions {
        plugin: Some(
            json!({"tenant": {"header": "x-tenant"}, "salt": {"key_env": "FOREWORD_NO_SUCH_KEY"}}),
        ),
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let error = Gateway::start(&options).unwrap_err().to_string();
    assert!(
        error.contains("salt.key_env") && error.contains("64 to 256"),
        "{error}"
    );
}

/// `jwt_authn` in front of Foreword: verified claims go into metadata and, one of them, into a header.
pub(crate) fn jwt_authn() -> String {
    let jwks =
        json!({"keys": [{"kty": "oct", "alg": "HS256", "k": base64url(SECRET)}]}).to_string();
    format!(
        r#"- name: envoy.filters.http.jwt_authn
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
    providers:
      main:
        issuer: https://issuer.example.com
        local_jwks: {{ inline_string: {} }}
        payload_in_metadata: jwt
        claim_to_headers:
        - {{ header_name: x-tenant, claim_name: tenant }}
    rules:
    - {{ match: {{ prefix: / }}, requires: {{ provider_name: main }} }}
"#,
        Value::from(jwks)
    )
}

const SECRET: &[u8] = b"a secret that only this test's issuer has";

/// A signed token with these claims.
pub(crate) fn token(claims: &Value) -> String {
    let mut claims = claims.clone();
    claims["iss"] = json!("https://issuer.example.com");
    let header = json!({"alg": "HS256", "typ": "JWT"}).to_string();
    let signed = format!(
        "{}.{}",
        base64url(header.as_bytes()),
        base64url(claims.to_string().as_bytes())
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET).unwrap();
    mac.update(signed.as_bytes());
    format!("{signed}.{}", base64url(&mac.finalize().into_bytes()))
}

fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut block = [0; 4];
        block[1..=chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(block);
        for digit in 0..=chunk.len() {
            let value = bits >> (18 - 6 * digit) & 63;
            text.push(char::from(DIGITS[value as usize]));
        }
    }
    text
}

fn ask_with(gateway: &Gateway, token: &str, ids: &[&str]) -> Response {
    let headers = [
        "content-type: application/json",
        // What a client says of itself counts for nothing.
        "x-tenant: red",
        &format!("authorization: Bearer {token}"),
    ];
    exchange(
        gateway.address(),
        &post_with(&headers, tagged(ids).as_bytes()),
    )
    .unwrap()
}

/// Tenants tell themselves apart by tokens, whatever else the client sends.
fn tenants_by_token(upstream: &Upstream, plugin: Value, claims: impl Fn(&str) -> Value) -> Gateway {
    let options = GatewayOptions {
        plugin: Some(plugin),
        filters_before: Some(jwt_authn()),
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    let token_of = |tenant: &str| token(&claims(tenant));
    let matched = |tenant: &str, ids: &[&str]| {
        let response = ask_with(&gateway, &token_of(tenant), ids);
        assert_eq!(response.status, 200);
        let report = response.report().to_owned();
        let matched = report
            .split("matched=")
            .nth(1)
            .map(|rest| rest[..1].to_owned());
        matched.unwrap_or(report)
    };
    assert_eq!(matched("red", &["a", "b"]), "0");
    assert_eq!(matched("blue", &["b", "a"]), "0");
    assert_eq!(matched("red", &["b", "a"]), "2");
    gateway
}

#[test]
fn a_verified_claim_names_the_tenant() {
    if Shell::chosen() == Shell::Dynamic {
        println!("skipped: a dynamic module cannot read claims, and says so when it is loaded");
        return;
    }
    let upstream = Upstream::start().unwrap();
    let plugin = json!({
        "tenant": {"claim": ["https://example.com/org", "id"], "payload": "jwt"},
        "salt": {"key": KEY},
    });
    let claims = |tenant: &str| json!({"https://example.com/org": {"id": tenant}, "tenant": "x"});
    let gateway = tenants_by_token(&upstream, plugin, claims);
    let salts: Vec<String> = upstream
        .received()
        .iter()
        .map(|request| {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            body["cache_salt"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!((salts[0] == salts[1], salts[0] == salts[2]), (false, true));

    // Verified, but without a text where the tenant's name is to be.
    for (org, status) in [
        (json!({}), 403),
        (json!({"id": ""}), 403),
        (json!({"id": 42}), 403),
        (json!({"id": true}), 403),
        (json!({"id": null}), 403),
        (json!({"id": "a\nb"}), 403),
        (json!({"id": "red"}), 200),
    ] {
        let token = token(&json!({"https://example.com/org": org}));
        let response = ask_with(&gateway, &token, &["a", "b"]);
        assert_eq!(response.status, status, "{org} {}", response.report());
    }
    // Not verified.
    let forged = format!("{}x", token(&claims("red")));
    assert_eq!(ask_with(&gateway, &forged, &["a", "b"]).status, 401);
    assert_eq!(gateway.failures().unwrap(), 0);
}

#[test]
fn a_claim_copied_to_a_header_names_the_tenant_in_every_shell() {
    let upstream = Upstream::start().unwrap();
    tenants_by_token(
        &upstream,
        salted("x-tenant"),
        |tenant| json!({"tenant": tenant}),
    );
}

#[test]
fn a_dynamic_module_says_that_it_cannot_read_claims() {
    let upstream = Upstream::start().unwrap();
    let options = GatewayOptions {
        plugin: Some(json!({"tenant": {"claim": "sub", "payload": "jwt"}})),
        shell: Shell::Dynamic,
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let error = Gateway::start(&options).unwrap_err().to_string();
    assert!(error.contains("claim_to_headers"), "{error}");
}

/// The paired test from outside: what `blue` gets, in bodies, headers and reports, is the same with and without a busy
/// `red` beside it. What counters say is the operator's, and they count both as one.
#[test]
fn one_tenants_answers_are_the_same_with_and_without_another() {
    let sequence: [&[&str]; 4] = [&["a", "b", "c"], &["c", "b", "a"], &["d", "a"], &["a", "d"]];
    let seen = [false, true].map(|with_red| {
        let upstream = Upstream::start().unwrap();
        let gateway = configured(&upstream, salted("x-tenant"));
        let mut seen = Vec::new();
        for ids in sequence {
            if with_red {
                for red in [&["c", "a", "b"][..], &["d", "c"], &["a", "d", "b"]] {
                    ask(&gateway, "red", &tagged(red));
                }
            }
            let response = ask(&gateway, "blue", &tagged(ids));
            let sent = upstream.last().unwrap();
            seen.push((
                response.report().to_owned(),
                sent.text(),
                sent.header("x-foreword-path").map(str::to_owned),
            ));
        }
        seen
    });
    assert_eq!(seen[0], seen[1]);
}

/// The whole way: the engine's own cache has nothing of another tenant.
#[test]
fn the_host_serves_one_tenants_documents_from_the_cache_and_not_anothers() {
    let model = artifacts::repository().join("host/engine/fixtures/qwen2");
    let host = Host::start(&model, &["--name", "tiny", "--kv-tokens", "8192"]).unwrap();
    let options = GatewayOptions {
        plugin: Some(salted("x-tenant")),
        ..GatewayOptions::placing_freely(host.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    let body = |ids: &[&str], forged: Option<&str>| {
        let documents = ids.iter().map(|id| {
            let words = format!("What {id} says is long enough to fill some pages. ").repeat(6);
            format!("<document id=\"{id}\">{words}</document>")
        });
        let documents: Vec<_> = documents.collect();
        let content = format!("{}\nWhy?", documents.join("\n"));
        let mut body = json!({
            "model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": content}],
        });
        if let Some(salt) = forged {
            body["cache_salt"] = json!(salt);
        }
        body.to_string()
    };
    let cached = |tenant: &str, body: &str| {
        let response = ask(&gateway, tenant, body);
        let answer = response.json().unwrap();
        assert_eq!(response.status, 200, "{answer}");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(cached("red", &body(&["a", "b", "c"], None)), 0);
    assert_eq!(cached("blue", &body(&["a", "b", "c"], None)), 0);
    let own = cached("blue", &body(&["c", "a", "b"], None));
    assert!(own > 100, "{own}");
    // The first tenant's salt is of no use to a client that knows it.
    let upstream = Upstream::start().unwrap();
    let beside = configured(&upstream, salted("x-tenant"));
    ask(&beside, "red", &tagged(&["a"]));
    let red = salt(&upstream);
    assert_eq!(cached("green", &body(&["a", "b", "c"], Some(&red))), 0);
}
