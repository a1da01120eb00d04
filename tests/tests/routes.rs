//! What clients reach through each configuration that is shipped: exact paths, made plain on purpose, and none that tells
//! of other tenants or computes a prompt which nobody has read.

use std::fs;

use foreword_filter::Config;
use foreword_tests::artifacts::repository;
use serde_json::Value;

fn documents(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(repository().join(file)).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The connection manager that clients speak to, of an Envoy configuration.
fn manager(file: &str) -> Value {
    let config = match file.ends_with("foreword.yaml") {
        false => documents(file).remove(0),
        true => {
            let mut objects = documents(file).into_iter();
            let map = objects
                .find(|object| object["kind"] == "ConfigMap")
                .unwrap();
            serde_saphyr::from_str(map["data"]["envoy.yaml"].as_str().unwrap()).unwrap()
        }
    };
    let listeners = config["static_resources"]["listeners"].as_array().unwrap();
    let clients = listeners
        .iter()
        .find(|listener| listener["name"] == "clients");
    let manager = clients
        .unwrap()
        .pointer("/filter_chains/0/filters/0/typed_config");
    manager.unwrap().clone()
}

const ENVOY: [&str; 8] = [
    "gateway-config/envoy/envoy.yaml",
    "gateway-config/envoy/dynamic-module.yaml",
    "gateway-config/envoy/ext-proc.yaml",
    "gateway-config/envoy/engines.yaml",
    "gateway-config/envoy/retrieval.yaml",
    "gateway-config/inference-extension/envoy.yaml",
    "gateway-config/vllm/envoy.yaml",
    "gateway-config/kubernetes/foreword.yaml",
];

/// What goes to an engine, in the order of the file.
fn routed(manager: &Value) -> Vec<String> {
    let hosts = manager["route_config"]["virtual_hosts"].as_array().unwrap();
    let routes = hosts
        .iter()
        .flat_map(|host| host["routes"].as_array().unwrap());
    let mut paths = Vec::new();
    for route in routes {
        match route["match"].as_object().unwrap().iter().next().unwrap() {
            (kind, path) if kind == "path" && route["route"].is_object() => {
                paths.push(path.as_str().unwrap().to_owned());
            }
            _ => assert_eq!(route["direct_response"]["status"], 404, "{route}"),
        }
    }
    paths
}

/// What the shipped lists name: what the filter watches by default, and what it lets through with salts.
fn listed() -> Vec<String> {
    let salted = br#"{"tenant": {"header": "t"}, "salt": {"key_env": "K"}}"#;
    let config = Config::from_json(salted).unwrap();
    [config.routes, config.open_paths].concat()
}

#[test]
fn every_envoy_configuration_sends_exact_paths_to_the_engine_and_no_other() {
    for file in ENVOY {
        assert_eq!(routed(&manager(file)), listed(), "{file}");
    }
}

#[test]
fn every_envoy_configuration_makes_paths_plain_on_purpose() {
    for file in ENVOY {
        let manager = manager(file);
        assert_eq!(manager["normalize_path"], true, "{file}");
        assert_eq!(manager["merge_slashes"], true, "{file}");
        let slashes = &manager["path_with_escaped_slashes_action"];
        assert_eq!(slashes, "REJECT_REQUEST", "{file}");
    }
}

#[test]
fn every_envoy_configuration_bounds_slow_clients_and_floods() {
    for file in ENVOY {
        let manager = manager(file);
        for time in [
            "request_headers_timeout",
            "request_timeout",
            "stream_idle_timeout",
        ] {
            assert!(manager[time].is_string(), "{file}: {time}");
        }
        let options = &manager["common_http_protocol_options"];
        assert!(options["idle_timeout"].is_string(), "{file}");
        assert!(
            manager["http2_protocol_options"]["max_concurrent_streams"].is_u64(),
            "{file}"
        );
        let filters = manager["http_filters"].as_array().unwrap().iter();
        let names: Vec<_> = filters
            .map(|filter| filter["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "envoy.filters.http.local_ratelimit",
                "foreword",
                "envoy.filters.http.router"
            ],
            "{file}"
        );
    }
}

#[test]
fn istio_and_envoy_gateway_route_the_same_exact_paths() {
    let engine = documents("gateway-config/istio/engine.yaml");
    let service = engine
        .iter()
        .find(|object| object["kind"] == "VirtualService");
    let rules = service.unwrap()["spec"]["http"].as_array().unwrap();
    let matches = rules
        .iter()
        .flat_map(|rule| rule["match"].as_array().unwrap());
    let exact: Vec<_> = matches
        .map(|one| one["uri"]["exact"].as_str().unwrap())
        .collect();
    assert_eq!(exact, listed());

    let route = &documents("gateway-config/envoy-gateway/httproute.yaml")[0];
    let rules = route["spec"]["rules"].as_array().unwrap();
    let matches = rules
        .iter()
        .flat_map(|rule| rule["matches"].as_array().unwrap());
    let exact: Vec<_> = matches
        .map(|one| {
            assert_eq!(one["path"]["type"], "Exact", "{one}");
            one["path"]["value"].as_str().unwrap()
        })
        .collect();
    assert_eq!(exact, listed());
}
