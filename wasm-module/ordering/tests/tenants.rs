//! Tenants share nothing: whatever one of them does, another's requests are answered as if it were alone.

use foreword_ordering::feed::TenantKey;
use foreword_ordering::policy::Placement;
use foreword_ordering::random::Random;
use foreword_ordering::{Config, Orderer, Rewrite, RewriteOptions, Skip, Tenant, salted};
use serde_json::{Value, json};

fn orderer(config: &Value) -> Orderer {
    Orderer::new(
        Config::from_json(config.to_string().as_bytes())
            .unwrap()
            .with_placement(Placement::FREE),
    )
}

/// A chat of some turns whose documents are drawn from a few, so that tenants have many in common.
fn body(random: &mut Random, model: &str) -> String {
    let mut draw = |below: u64| random.below(below);
    let mut messages = Vec::new();
    for turn in 0..=draw(3) {
        let documents =
            (0..draw(6)).map(|_| format!("<doc id=\"{0}\">Text of {0}.</doc>", draw(12)));
        let documents: Vec<_> = documents.collect();
        messages
            .push(json!({"role": "user", "content": format!("{} {turn}?", documents.join("\n"))}));
        messages.push(json!({"role": "assistant", "content": "Because."}));
    }
    messages.pop();
    let array: Vec<_> = (0..draw(4))
        .map(|_| json!({"id": "x", "text": format!("{}", draw(5))}))
        .collect();
    json!({"model": model, "messages": messages, "documents": array}).to_string()
}

fn told(rewrite: &Result<Rewrite, Skip>) -> String {
    format!("{rewrite:?}")
}

/// The paired test: the same requests of `b`, once alone and once between ten times as many of `a`. Bodies, reports and
/// paths must be the same byte for byte, and so must the tree that the policy walked, node for node: so the work done for
/// `b`, and with it the time, does not depend on `a`.
#[test]
fn a_tenants_requests_are_answered_as_if_it_were_alone() {
    for policy in ["longest", "foresight", "greedy", "recency"] {
        for pin in [false, true] {
            let config = json!({
                "policy": policy,
                "conversation": {"pin": pin, "max_entries": 64},
                "tree": {"max_nodes": 64},
            });
            let (mut alone, mut shared) = (orderer(&config), orderer(&config));
            let (mut of_a, mut of_b) = (Random::new(1), Random::new(2));
            let b = Tenant::named("b");
            for _ in 0..60 {
                for _ in 0..10 {
                    let _ = shared.rewrite(Tenant::named("a"), body(&mut of_a, "m").as_bytes());
                }
                let body = body(&mut of_b, "m");
                let [first, second] = [&mut alone, &mut shared]
                    .map(|orderer| told(&orderer.rewrite(b, body.as_bytes())));
                assert_eq!(first, second);
                assert_eq!(alone.view(b, "m", 100), shared.view(b, "m", 100));
            }
        }
    }
}

#[test]
fn one_name_under_two_salts_is_two_tenants() {
    let mut orderer = orderer(&json!({}));
    let body =
        json!({"messages": [{"role": "user", "content": "<doc>a</doc><doc>b</doc>"}]}).to_string();
    let mut matched = |salt| {
        let tenant = Tenant {
            name: "t",
            key: TenantKey::of(salt),
        };
        let options = RewriteOptions {
            salt: Some(salt),
            ..RewriteOptions::default()
        };
        let rewrite = orderer
            .rewrite_on(&options, tenant, body.as_bytes())
            .unwrap();
        rewrite.report.matched
    };
    assert_eq!((matched("one"), matched("two"), matched("one")), (0, 0, 2));
}

#[test]
fn without_a_gateways_salt_the_clients_own_keeps_its_trees_apart() {
    let mut orderer = orderer(&json!({}));
    let mut matched = |salt: Value| {
        let content = "<doc>a</doc><doc>b</doc>";
        let mut body = json!({"messages": [{"role": "user", "content": content}]});
        if !salt.is_null() {
            body["cache_salt"] = salt;
        }
        let options = RewriteOptions {
            key_of: Some(TenantKey::of),
            ..RewriteOptions::default()
        };
        let rewrite = orderer.rewrite_on(&options, Tenant::default(), body.to_string().as_bytes());
        rewrite.unwrap().report.matched
    };
    assert_eq!(matched(json!("one")), 0);
    assert_eq!(matched(json!(null)), 0);
    assert_eq!(matched(json!("two")), 0);
    assert_eq!(matched(json!("one")), 2);
    assert_eq!(matched(json!(null)), 2);
}

#[test]
fn a_salt_goes_into_the_body_with_the_order_and_into_one_that_stays() {
    let mut orderer = orderer(&json!({"hint": {"enabled": false}}));
    let request = |first: &str, second: &str| {
        format!(
            "{{\"cache_salt\": \"theirs\", \"messages\": [{{\"role\": \"user\", \"content\": \
             \"<doc>{first}</doc><doc>{second}</doc>\"}}]}}"
        )
    };
    let options = RewriteOptions {
        salt: Some("ours"),
        ..RewriteOptions::default()
    };
    for (came, ordered) in [(request("a", "b"), false), (request("b", "a"), true)] {
        let rewrite = orderer
            .rewrite_on(&options, Tenant::default(), came.as_bytes())
            .unwrap();
        assert_eq!(rewrite.ordered, ordered);
        let sent = String::from_utf8(rewrite.body.unwrap()).unwrap();
        assert_eq!(sent, request("a", "b").replace("theirs", "ours"));
    }
}

/// A salt is written into whatever the core can read, and what it writes reads back as that salt alone.
#[test]
fn random_bodies_get_the_salt_once() {
    let mut random = Random::new(7);
    for round in 0..500 {
        let mut body = body(&mut random, "m");
        if round % 3 == 0 {
            body = body.replacen('{', "{\"cache_salt\":\"theirs\",", 1);
        }
        let sent = salted(body.as_bytes(), "ours").unwrap();
        assert_eq!(
            String::from_utf8(sent.clone())
                .unwrap()
                .matches("cache_salt")
                .count(),
            1
        );
        let mut sent: Value = serde_json::from_slice(&sent).unwrap();
        let mut came: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(sent["cache_salt"], "ours");
        for value in [&mut sent, &mut came] {
            value.as_object_mut().unwrap().remove("cache_salt");
        }
        assert_eq!(sent, came);
    }
}

fn request(orderer: &mut Orderer, tenant: &str, model: &str) -> u32 {
    let content = "<doc>a</doc><doc>b</doc>";
    let body = json!({"model": model, "messages": [{"role": "user", "content": content}]});
    let rewrite = orderer.rewrite(Tenant::named(tenant), body.to_string().as_bytes());
    rewrite.unwrap().report.matched
}

#[test]
fn a_tenant_that_names_many_models_takes_no_other_ones_tree() {
    let mut orderer = orderer(&json!({"tree": {"max_trees": 6}}));
    for tenant in ["a", "b"] {
        for model in ["m", "n"] {
            request(&mut orderer, tenant, model);
        }
    }
    for model in 0..100 {
        request(&mut orderer, "greedy", &model.to_string());
        assert!(orderer.trees() <= 6);
    }
    for tenant in ["a", "b"] {
        for model in ["m", "n"] {
            assert_eq!(request(&mut orderer, tenant, model), 2, "{tenant} {model}");
        }
    }
    assert_eq!(request(&mut orderer, "greedy", "99"), 2, "its own latest");
}

/// Against the slow obvious rule: whoever would hold most gives up a tree, so nobody falls below its share.
#[test]
fn nobody_falls_below_its_share_of_the_trees() {
    const TREES: u32 = 12;
    let mut orderer = orderer(&json!({"tree": {"max_trees": TREES}}));
    let mut random = Random::new(3);
    let tenants: Vec<String> = (0..5).map(|tenant| format!("t{tenant}")).collect();
    let share = TREES as usize / tenants.len();
    // Each uses as many models as its share, again and again; one also names new ones all the time.
    for round in 0..400 {
        let tenant = &tenants[random.below(5) as usize];
        request(
            &mut orderer,
            tenant,
            &random.below(share as u64).to_string(),
        );
        request(&mut orderer, &tenants[0], &format!("new {round}"));
    }
    let held = |orderer: &Orderer, tenant: &str| {
        (0..share)
            .filter(|model| {
                !orderer
                    .view(Tenant::named(tenant), &model.to_string(), 1)
                    .is_empty()
            })
            .count()
    };
    for tenant in &tenants[1..] {
        assert_eq!(held(&orderer, tenant), share, "{tenant}");
    }
}
