//! The Kubernetes manifests in `gateway-config/`: each is valid to the letter of its kind's schema, carries a plugin
//! configuration that the filter accepts, and is put into a real Envoy as far as one machine goes.
//!
//! The schemas are the published ones (`schemas/README.md`). A cluster drops fields that a schema does not know without
//! a word; here they are errors.

use std::fs;
use std::path::PathBuf;

use foreword_filter::{Config, RequestHeaders};
use foreword_tests::Gateway;
use foreword_tests::artifacts::{filter_module, repository};
use serde_json::{Value, json};

/// Every manifest with the file that it stands in.
fn manifests() -> Vec<(PathBuf, Value)> {
    let folders = ["gateway-config/istio", "gateway-config/envoy-gateway"];
    let files = folders
        .iter()
        .flat_map(|folder| fs::read_dir(repository().join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|name| name == "yaml"));
    let found: Vec<_> = files
        .flat_map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            documents
                .into_iter()
                .map(move |document| (path.clone(), document))
        })
        .collect();
    assert!(found.len() >= 11, "only {} manifests", found.len());
    found
}

fn manifest(file: &str) -> Value {
    let mut found = manifests()
        .into_iter()
        .filter(|(path, _)| path.ends_with(file));
    let (_, manifest) = found.next().unwrap();
    assert!(found.next().is_none(), "{file} holds several");
    manifest
}

/// Makes fields that a schema does not know errors, as long as it does not ask for them to be kept.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            let open = object.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
            if object.contains_key("properties")
                && object.get("type") == Some(&json!("object"))
                && !open
            {
                object
                    .entry("additionalProperties")
                    .or_insert(Value::Bool(false));
            }
            object.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// What is wrong with a manifest, by its kind's schema in `tests/schemas`.
fn faults(manifest: &Value) -> Vec<String> {
    let kind = manifest["kind"].as_str().unwrap();
    let path = repository().join(format!("tests/schemas/{kind}.json"));
    let file = fs::read_to_string(&path).unwrap_or_else(|_| panic!("no schema of kind {kind}"));
    faults_by(serde_json::from_str(&file).unwrap(), manifest)
}

/// What is wrong with a manifest, by a schema and the `apiVersion` that it belongs to.
fn faults_by(mut file: Value, manifest: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if manifest["apiVersion"] != file["apiVersion"] {
        found.push(format!(
            "apiVersion is {}, the schema's {}",
            manifest["apiVersion"], file["apiVersion"]
        ));
    }
    if !manifest["metadata"]["name"].is_string() {
        found.push("it has no name".to_owned());
    }
    let schema = &mut file["schema"]["properties"]["spec"];
    close(schema);
    let validator = jsonschema::validator_for(schema).unwrap();
    let errors = validator.iter_errors(&manifest["spec"]);
    found.extend(errors.map(|error| format!("{}: {error}", error.instance_path())));
    found
}

#[test]
fn every_manifest_follows_its_schema() {
    for (path, manifest) in manifests() {
        let faults = faults(&manifest);
        assert!(faults.is_empty(), "{}: {faults:#?}", path.display());
    }
}

/// The objects of an InferencePool and its picker, by kind and name.
fn inference_pool() -> Vec<Value> {
    let path = repository().join("gateway-config/inference-extension/inferencepool.yaml");
    serde_saphyr::from_multiple(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_inference_pool_and_its_route_follow_their_schemas() {
    let objects = inference_pool();
    let kinds = ["InferencePool", "HTTPRoute"];
    let mut found = 0;
    for object in objects
        .iter()
        .filter(|it| kinds.contains(&it["kind"].as_str().unwrap()))
    {
        assert_eq!(faults(object), [""; 0]);
        found += 1;
    }
    assert_eq!(found, 2);
    let mut pool = objects[0].clone();
    pool["spec"]["endpointPickerRef"]["failureMode"] = json!("FailLoud");
    pool["spec"]["extensionRef"] = json!({});
    assert_eq!(faults(&pool).len(), 2, "{:?}", faults(&pool));
}

#[test]
fn the_inference_pool_its_name_in_dns_and_its_picker_fit_together() {
    let objects = inference_pool();
    let object = |kind: &str, name: &str| {
        let mut found = objects.iter();
        let found = found.find(|it| it["kind"] == kind && it["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("{kind} {name}")).clone()
    };
    let pool = object("InferencePool", "vllm");
    let endpoints = object("Service", "vllm-endpoints");
    assert_eq!(endpoints["spec"]["clusterIP"], "None");
    assert_eq!(
        endpoints["spec"]["selector"],
        pool["spec"]["selector"]["matchLabels"]
    );
    let port = &pool["spec"]["targetPorts"][0]["number"];
    assert_eq!(&endpoints["spec"]["ports"][0]["port"], port);
    let picker = pool["spec"]["endpointPickerRef"]["name"].as_str().unwrap();
    let service = object("Service", picker);
    assert_eq!(
        service["spec"]["ports"][0]["port"],
        pool["spec"]["endpointPickerRef"]["port"]["number"]
    );
    let deployment = object("Deployment", picker);
    let template = &deployment["spec"]["template"];
    assert_eq!(template["metadata"]["labels"], service["spec"]["selector"]);
    let arguments = template["spec"]["containers"][0]["args"]
        .as_array()
        .unwrap();
    let namespace = pool["metadata"]["namespace"].as_str().unwrap();
    let name = json!(format!(
        "--endpoints-dns=vllm-endpoints.{namespace}.svc.cluster.local:{port}"
    ));
    assert!(arguments.contains(&name), "{arguments:?}");
    let map = object("ConfigMap", picker);
    let map = map["data"]["foreword.json"].as_str().unwrap();
    let file = fs::read_to_string(repository().join("gateway-config/envoy/ext-proc.json")).unwrap();
    let [map, file] = [map, &file].map(|text| serde_json::from_str::<Value>(text).unwrap());
    assert_eq!(map, file);
}

#[test]
fn a_misspelt_field_and_a_bad_value_are_found() {
    let mut manifest = manifest("trafficextension.yaml");
    manifest["spec"]["wasm"]["failstrategy"] = json!("FAIL_RELOAD");
    assert_eq!(faults(&manifest).len(), 1, "{:?}", faults(&manifest));
    manifest["spec"]["phase"] = json!("LATE");
    assert_eq!(faults(&manifest).len(), 2, "{:?}", faults(&manifest));
}

#[test]
fn the_filter_accepts_every_plugin_configuration() {
    for (file, pointer) in [
        ("trafficextension.yaml", "/spec/wasm/pluginConfig"),
        ("wasmplugin.yaml", "/spec/pluginConfig"),
        ("envoyextensionpolicy.yaml", "/spec/wasm/0/config"),
    ] {
        let manifest = manifest(file);
        let config = manifest.pointer(pointer).unwrap().to_string();
        let config = Config::from_json(config.as_bytes()).unwrap();
        assert_eq!(config.request_headers, RequestHeaders::Release, "{file}");
    }
    let filter = extension(&manifest("envoyfilter.yaml"));
    let config = filter["config"]["configuration"]["value"].as_str().unwrap();
    let config = Config::from_json(config.as_bytes()).unwrap();
    assert_eq!(config.request_headers, RequestHeaders::Hold);
    assert_eq!(filter["config"]["allow_on_headers_stop_iteration"], true);
}

#[test]
fn envoy_accepts_what_the_envoy_filters_patch_in() {
    let mut filter = extension(&manifest("envoyfilter.yaml"));
    // Istio's agent fetches the image and puts a file in its place.
    let module = filter_module().unwrap();
    filter["config"]["vm_config"]["code"] = json!({"local": {"filename": module}});
    let mut host = json!({
        "name": "engine",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 204}}],
    });
    let limit = patch(&manifest("body-limit.yaml"), "VIRTUAL_HOST");
    host.as_object_mut()
        .unwrap()
        .extend(limit.as_object().unwrap().clone());
    let limits = patches("istio/limits.yaml");
    let [manager_patch, rate_limit] = &limits[..] else {
        panic!("{} patches", limits.len())
    };
    let mut manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [
            rate_limit["patch"]["value"],
            {"name": "foreword", "typed_config": filter},
            {"name": "envoy.filters.http.router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            }},
        ],
    });
    let merged = &manager_patch["patch"]["value"]["typed_config"];
    let fields = manager.as_object_mut().unwrap();
    fields.extend(merged.as_object().unwrap().clone());
    let bootstrap = json!({"static_resources": {"listeners": [{
        "name": "gateway",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": manager,
        }]}],
    }]}});
    Gateway::validate(&bootstrap.to_string()).unwrap();
}

#[test]
fn envoy_accepts_the_external_processor_of_an_envoy_filter_and_it_is_the_shipped_one() {
    let filter = patch(&manifest("istio/ext-proc.yaml"), "HTTP_FILTER");
    let shipped = fs::read_to_string(repository().join("gateway-config/envoy/ext-proc.yaml"));
    let shipped: Value = serde_saphyr::from_str(&shipped.unwrap()).unwrap();
    let filters = shipped.pointer(
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/1",
    );
    let mut own = filters.unwrap()["typed_config"].clone();
    let place = "/grpc_service/envoy_grpc/cluster_name";
    let cluster = filter["typed_config"].pointer(place).unwrap().clone();
    *own.pointer_mut(place).unwrap() = cluster.clone();
    // All but its cluster, which the tests of the gateway run with.
    assert_eq!(filter["typed_config"], own);
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": {},
        "http_filters": [filter, {"name": "envoy.filters.http.router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        }}],
    });
    let bootstrap = json!({"static_resources": {
        "clusters": [{"name": cluster}],
        "listeners": [{
            "name": "gateway",
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
            "filter_chains": [{"filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": manager,
            }]}],
        }],
    }});
    Gateway::validate(&bootstrap.to_string()).unwrap();
}

#[test]
fn the_shipped_configurations_of_the_external_processor_are_one_and_the_filters_defaults() {
    let read = |file: &str| {
        let path = repository().join("gateway-config").join(file);
        fs::read_to_string(path).unwrap()
    };
    let file: Value = serde_json::from_str(&read("envoy/ext-proc.json")).unwrap();
    Config::from_json(file.to_string().as_bytes()).unwrap();
    let envoy = read("envoy/envoy.yaml");
    let (_, wasm) = envoy.split_once("value: |\n").unwrap();
    let (wasm, _) = wasm.split_once("          # Foreword: end.").unwrap();
    assert_eq!(file, serde_json::from_str::<Value>(wasm).unwrap());
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&read("kubernetes/ext-proc.yaml")).unwrap();
    let map = objects.iter().find(|object| object["kind"] == "ConfigMap");
    let map = map.unwrap()["data"]["foreword.json"].as_str().unwrap();
    assert_eq!(file, serde_json::from_str::<Value>(map).unwrap());
}

/// A picker's `envoy.yaml` is `ext-proc.yaml` but for what its first lines say.
#[test]
fn the_pickers_envoy_is_the_external_processors_line_for_line() {
    let read = |file: &str| fs::read_to_string(repository().join(file)).unwrap();
    let plain = |text: String| {
        let (_, body) = text.split_once("\nadmin:\n").unwrap();
        let mut body = body.to_owned();
        for (from, to) in [
            (
                "          # Where a request goes nobody",
                "          # Request trailers reach",
            ),
            ("                  endpoint: ", "          http_filters:"),
            ("          # Foreword: begin.", "          # Foreword: end."),
            ("\n  - name: engine\n    ", "\n  # The processor."),
        ] {
            if let Some((before, rest)) = body.split_once(from) {
                let (_, after) = rest.split_once(to).unwrap();
                body = format!("{before}{to}{after}");
            }
        }
        body
    };
    assert_eq!(
        plain(read("gateway-config/inference-extension/envoy.yaml")),
        plain(read("gateway-config/envoy/ext-proc.yaml"))
    );
}

/// `ext-proc.yaml` is `envoy.yaml` but for its first lines, the filter, the access log and the processor's cluster.
#[test]
fn the_external_processors_envoy_is_the_others_line_for_line() {
    let read = |file: &str| fs::read_to_string(repository().join(file)).unwrap();
    let plain = |text: String| {
        let (_, body) = text.split_once("\nadmin:\n").unwrap();
        let (before, rest) = body.split_once("          # Foreword: begin.").unwrap();
        let (_, after) = rest.split_once("          # Foreword: end.").unwrap();
        let (after, _) = after
            .split_once("\n  # The processor.")
            .unwrap_or((after, ""));
        let lines = before.lines().chain(after.trim_end().lines());
        let kept = lines.filter(|line| !line.trim_start().starts_with('#'));
        let kept: Vec<String> = kept
            .map(|line| {
                line.replace("FILTER_STATE(wasm.foreword.", "DYNAMIC_METADATA(foreword:")
                    .replace(":PLAIN)%", ")%")
            })
            .collect();
        kept.join("\n")
    };
    assert_eq!(
        plain(read("gateway-config/envoy/ext-proc.yaml")),
        plain(read("gateway-config/envoy/envoy.yaml"))
    );
}

/// The configuration of the filter that an EnvoyFilter adds.
fn extension(manifest: &Value) -> Value {
    patch(manifest, "EXTENSION_CONFIG")["typed_config"].clone()
}

/// All that the EnvoyFilter in a file patches.
fn patches(file: &str) -> Vec<Value> {
    manifest(file)["spec"]["configPatches"]
        .as_array()
        .unwrap()
        .clone()
}

/// What an EnvoyFilter puts in that place.
fn patch(manifest: &Value, place: &str) -> Value {
    let patches = manifest["spec"]["configPatches"].as_array().unwrap();
    let patch = patches.iter().find(|patch| patch["applyTo"] == place);
    patch.unwrap()["patch"]["value"].clone()
}

/// The objects of a file in `gateway-config`.
fn objects(file: &str) -> Vec<Value> {
    let path = repository().join("gateway-config").join(file);
    let text = fs::read_to_string(&path).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Gateways that cannot be run here, and whose schemas are not kept here: their objects.
const OTHERS: [&str; 2] = ["ai-gateway/ai-gateway.yaml", "agentgateway/policy.yaml"];

/// The first object of a kind among [`OTHERS`].
fn other(kind: &str) -> Value {
    let found = OTHERS.into_iter().flat_map(objects);
    let mut found = found.filter(|object| object["kind"] == kind);
    found.next().unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn other_gateways_reach_the_processor_as_envoy_gateway_does() {
    let policy = other("EnvoyExtensionPolicy");
    assert_eq!(faults(&policy), [""; 0]);
    assert_eq!(policy, manifest("envoy-gateway/ext-proc.yaml"));
    // The processor's service, whose port speaks gRPC over TLS: Istio takes the protocol from the port's name.
    let services = objects("kubernetes/ext-proc.yaml");
    let service = services
        .iter()
        .find(|object| object["kind"] == "Service")
        .unwrap();
    let reached = &other("AgentgatewayPolicy")["spec"]["traffic"]["extProc"];
    assert_eq!(reached["backendRef"]["name"], service["metadata"]["name"]);
    assert_eq!(
        reached["backendRef"]["port"],
        service["spec"]["ports"][0]["port"]
    );
    assert_eq!(service["spec"]["ports"][0]["name"], "grpc");
    assert_eq!(service["spec"]["ports"][0]["appProtocol"], Value::Null);
    // Both of agentgateway's forms say the same, each in its own spelling.
    let [alone] = objects("agentgateway/config.yaml").try_into().unwrap();
    let alone = &alone["binds"][0]["listeners"][0]["routes"][0]["policies"]["extProc"];
    let lower = |value: &Value| value.to_string().to_lowercase();
    for field in ["failureMode", "processingOptions"] {
        assert_eq!(lower(&alone[field]), lower(&reached[field]));
    }
    // A buffer that is smaller than what the processor reads would answer with an error what Foreword takes.
    let config = fs::read(repository().join("gateway-config/envoy/ext-proc.json")).unwrap();
    let bytes = Config::from_json(&config).unwrap().max_body_bytes;
    assert_eq!(bytes, 4 << 20);
    let limits = [
        &other("BackendTrafficPolicy")["spec"]["requestBuffer"]["limit"],
        &objects(OTHERS[1])[1]["spec"]["frontend"]["http"]["maxBufferSize"],
    ];
    assert_eq!(limits, [&json!("4Mi"); 2]);
}

/// The environment that names a folder of CRDs (YAML, or a chart's templates of it), and `agentgateway-config.json`. They
/// are large, and not kept here.
const CRDS: &str = "FOREWORD_CRDS";

/// The schemas in that folder by kind, as the files in `tests/schemas` have them.
fn schemas(folder: &std::path::Path) -> std::collections::BTreeMap<String, Value> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|name| name == "yaml"));
    let definitions = files.flat_map(|path| {
        let text = fs::read_to_string(&path).unwrap();
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("{{"));
        let text = lines.collect::<Vec<_>>().join("\n");
        let options = serde_saphyr::options! { budget: None };
        let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(&text, options)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        documents
            .into_iter()
            .filter(|document| document["kind"] == "CustomResourceDefinition")
    });
    let schemas = definitions.map(|definition| {
        let spec = &definition["spec"];
        let versions = spec["versions"].as_array().unwrap();
        let version = versions
            .iter()
            .find(|version| version["storage"] == true)
            .unwrap();
        let [group, name] = [&spec["group"], &version["name"]].map(|it| it.as_str().unwrap());
        let kind = spec["names"]["kind"].as_str().unwrap();
        let schema = &version["schema"]["openAPIV3Schema"];
        let file = json!({"apiVersion": format!("{group}/{name}"), "schema": schema});
        (kind.to_owned(), file)
    });
    schemas.collect()
}

#[test]
fn other_gateways_objects_follow_their_published_schemas() {
    let Some(folder) = std::env::var_os(CRDS).map(PathBuf::from) else {
        eprintln!(
            "SKIPPED: {CRDS} names no folder with the CRDs of Envoy AI Gateway and agentgateway"
        );
        return;
    };
    let schemas = schemas(&folder);
    let schema = |kind: &str| {
        let found = schemas.get(kind).cloned();
        found.unwrap_or_else(|| panic!("{} has no CRD of kind {kind}", folder.display()))
    };
    for object in OTHERS.into_iter().flat_map(objects) {
        let kind = object["kind"].as_str().unwrap();
        let faults = faults_by(schema(kind), &object);
        assert!(
            faults.is_empty(),
            "{kind} {}: {faults:#?}",
            object["metadata"]["name"]
        );
    }
    // The schemas refuse what they should.
    let mut policy = other("AgentgatewayPolicy");
    policy["spec"]["traffic"]["extProc"]["failureMode"] = json!("FailLoud");
    policy["spec"]["traffic"]["extProc"]["timeout"] = json!("1s");
    let faults = faults_by(schema("AgentgatewayPolicy"), &policy);
    assert_eq!(faults.len(), 2, "{faults:#?}");

    let file = fs::read_to_string(folder.join("agentgateway-config.json")).unwrap();
    let validator = jsonschema::validator_for(&serde_json::from_str(&file).unwrap()).unwrap();
    let [alone] = objects("agentgateway/config.yaml").try_into().unwrap();
    let errors = validator.iter_errors(&alone);
    let faults: Vec<_> = errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let mut wrong = alone;
    wrong["binds"][0]["listeners"][0]["routes"][0]["policies"]["extProc"]["timeout"] = json!("1s");
    assert!(!validator.is_valid(&wrong));
}
