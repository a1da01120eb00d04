//! The Helm chart and the plain manifests that it makes: valid to the letter of Kubernetes' schemas, locked down, whole
//! among themselves, and with a configuration that real Envoy and the filter accept.
//!
//! The schemas are those of Kubernetes 1.33, closed: a field that they do not know is an error. What needs Helm is
//! skipped, aloud, where `cargo xtask setup` could not install it.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};

use foreword_filter::Config;
use foreword_tests::Gateway;
use foreword_tests::artifacts::{filter_module, repository};
use serde_json::{Value, json};

const PLAIN: &str = "gateway-config/kubernetes/foreword.yaml";

/// Helm with these arguments on the chart; `None`, said aloud, where there is no Helm.
fn helm(arguments: &[&str]) -> Option<Output> {
    let helm = repository().join(".tools/helm");
    if !helm.is_file() {
        eprintln!("SKIPPED: Helm is not in .tools; run `cargo xtask setup`");
        return None;
    }
    let (first, rest) = arguments.split_first().unwrap();
    let output = Command::new(helm)
        .arg(first)
        .args(["foreword", "gateway-config/helm/foreword"])
        .args(["--namespace", "llm"])
        .args(rest)
        .current_dir(repository())
        .output()
        .unwrap();
    Some(output)
}

/// What the chart makes of these values.
fn rendered(values: &[&str]) -> Option<String> {
    let mut arguments = vec!["template"];
    for value in values {
        arguments.extend(["--set", value]);
    }
    let output = helm(&arguments)?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{values:?}: {error}");
    Some(String::from_utf8(output.stdout).unwrap())
}

fn objects(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect()
}

fn plain() -> Vec<Value> {
    let objects = objects(&fs::read_to_string(repository().join(PLAIN)).unwrap());
    assert_eq!(objects.len(), 9, "{PLAIN}");
    objects
}

/// What is wrong with an object, by its kind's schema.
fn faults(object: &Value) -> Vec<String> {
    let file = fs::read_to_string(repository().join("tests/schemas/kubernetes.json")).unwrap();
    let mut file: Value = serde_json::from_str(&file).unwrap();
    let kind = object["kind"].as_str().unwrap();
    let mut schema = file["kinds"][kind].take();
    assert!(schema.is_object(), "no schema of kind {kind}");
    schema["$defs"] = file["$defs"].take();
    schema["required"] = json!(["apiVersion", "kind", "metadata"]);
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors = validator.iter_errors(object);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

/// Values that take other ways through the templates.
const VALUES: [&[&str]; 5] = [
    &[],
    &[
        "engines[0].address=vllm-0.vllm",
        "engines[0].port=8000",
        "engines[1].address=vllm-1.vllm",
        "engines[1].port=8000",
    ],
    &["gateway.module.image=", "gateway.module.claim=modules"],
    &[
        "gateway.plugin.routes={/v1/chat/completions,/v2/chat}",
        "gateway.openPaths={/v1/models,/v2/models}",
        "gateway.requestsPerSecond=0",
    ],
    &[
        "host.gpus=0",
        "host.keySecret=keys",
        "host.feedKeySecret=feed",
        "gateway.secrets[0].env=SALT_KEY",
        "gateway.secrets[0].secret=salt",
        "gateway.secrets[0].key=key",
        "host.args={--queue-order=grouped}",
        "monitoring.namespace=",
        "gateway.clients[0].namespaceSelector.matchLabels.team=rag",
        "host.nodeSelector.disk=fast",
    ],
];

#[test]
fn the_plain_manifests_follow_their_schemas() {
    let ext_proc = repository().join("gateway-config/kubernetes/ext-proc.yaml");
    let ext_proc = objects(&fs::read_to_string(ext_proc).unwrap());
    assert_eq!(ext_proc.len(), 4);
    let picker = repository().join("gateway-config/inference-extension/inferencepool.yaml");
    let mut picker = objects(&fs::read_to_string(picker).unwrap());
    // The other kinds have schemas of their own: `manifests.rs`.
    picker.retain(|object| {
        !["DestinationRule", "InferencePool", "HTTPRoute"]
            .contains(&object["kind"].as_str().unwrap())
    });
    assert_eq!(picker.len(), 5);
    for object in plain().into_iter().chain(ext_proc).chain(picker) {
        assert_eq!(faults(&object), [""; 0], "{}", object["kind"]);
    }
}

#[test]
fn a_misspelt_field_and_a_bad_value_are_found() {
    let mut deployment = plain()
        .into_iter()
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = json!({});
    assert_eq!(faults(&deployment).len(), 1, "{:?}", faults(&deployment));
    deployment["spec"]["replicas"] = json!("two");
    assert_eq!(faults(&deployment).len(), 2, "{:?}", faults(&deployment));
}

#[test]
fn whatever_the_values_the_chart_follows_the_schemas() {
    for values in VALUES {
        let Some(text) = rendered(values) else { return };
        let objects = objects(&text);
        assert!(objects.len() >= 5);
        for object in &objects {
            assert_eq!(faults(object), [""; 0], "{values:?}: {}", object["kind"]);
        }
        check_locks(&objects);
        check_references(&objects);
    }
}

#[test]
fn the_plain_manifests_are_what_the_chart_makes() {
    let Some(text) = rendered(&[]) else { return };
    let by_name = |objects: Vec<Value>| {
        let name = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
        objects
            .into_iter()
            .map(|object| (name(&object), object))
            .collect::<BTreeMap<_, _>>()
    };
    assert!(
        by_name(objects(&text)) == by_name(plain()),
        "{PLAIN} is out of date: helm template foreword gateway-config/helm/foreword --namespace llm > {PLAIN}"
    );
}

#[test]
fn helm_finds_no_fault_with_the_chart() {
    let Some(_) = helm(&["template"]) else { return };
    let lint = Command::new(repository().join(".tools/helm"))
        .args(["lint", "--strict", "gateway-config/helm/foreword"])
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(
        lint.status.success(),
        "{}",
        String::from_utf8_lossy(&lint.stdout)
    );
}

#[test]
fn a_value_that_cannot_be_is_refused_by_its_name() {
    for (value, name) in [
        ("gateway.replicas=0", "/gateway/replicas"),
        ("gateway.replica=2", "replica"),
        ("gateway.image=envoyproxy/envoy:v1.40.0", "/gateway/image"),
        ("host.image=foreword/host@sha256:12", "/host/image"),
        ("gateway.module.image=filter:0.1.0", "/gateway/module/image"),
        ("host.gpus=-1", "/host/gpus"),
        ("gateway.module.image=", "/gateway/module"),
        ("gateway.module.configMap=filter", "configMap"),
        ("engines[0].address=vllm", "port"),
        ("engines[0].address=http://vllm", "/engines/0/address"),
        ("host.resources=null", "resources"),
        (
            "gateway.plugin.engines[0].name=a,gateway.plugin.engines[1].name=b",
            "gateway.plugin.engines",
        ),
        (
            "gateway.plugin.retrieval.cluster=retriever",
            "gateway.plugin.retrieval.cluster",
        ),
        (
            "gateway.plugin.retrieval.cluster=feed",
            "gateway.plugin.retrieval.cluster",
        ),
        (
            "gateway.plugin.engines[0].feed.cluster=other",
            "gateway.plugin.engines[0].feed.cluster",
        ),
        ("monitoring.namespace=A_b", "/monitoring/namespace"),
        ("gateway.plugin.max_body_bytes=0", "max_body_bytes"),
        ("gateway.plugin.routes={v1}", "/gateway/plugin/routes"),
        ("gateway.openPaths={/v1/%61}", "/gateway/openPaths"),
        ("gateway.requestsPerSecond=-1", "/gateway/requestsPerSecond"),
    ] {
        let Some(output) = helm(&["template", "--set", value]) else {
            return;
        };
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && error.contains(name),
            "{value}: {error}"
        );
    }
}

/// Kubernetes refuses numbers and booleans where it expects names, and YAML reads bare `123` and `true` as such.
#[test]
fn names_of_digits_and_texts_with_yamls_signs_stay_texts() {
    let values = "host.keySecret=1,host.feedKeySecret=true,host.model.claim=123,host.model.name=a: b #c,host.model.path=a: b,\
                  monitoring.namespace=1234,gateway.secrets[0].env=NO,gateway.secrets[0].secret=12,gateway.secrets[0].key=1";
    let Some(output) = helm(&["template", "--set-string", values, "--namespace", "2024"]) else {
        return;
    };
    let objects = objects(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(
        objects.len(),
        9,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for object in &objects {
        assert_eq!(faults(object), [""; 0], "{}", object["kind"]);
    }
    assert!(has_argument(&objects, "--name=a: b #c"));
    assert!(has_argument(&objects, "--model=/models/a: b"));
}

#[test]
fn a_release_name_that_no_service_may_have_is_refused() {
    for name in ["1st", "foreword.prod"] {
        let Some(_) = helm(&["version"]) else { return };
        let output = Command::new(repository().join(".tools/helm"))
            .args(["template", name, "gateway-config/helm/foreword"])
            .current_dir(repository())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && error.contains("the release's name"),
            "{name}: {error}"
        );
    }
}

/// A ConfigMap holds 1 MiB, in whole.
#[test]
fn the_gateways_module_fits_into_what_it_is_mounted_from() {
    let module = fs::metadata(filter_module().unwrap()).unwrap().len();
    for values in VALUES {
        let objects = rendered(values).map_or_else(plain, |text| objects(&text));
        let volumes = &deployment(&objects, "gateway")["spec"]["template"]["spec"]["volumes"];
        let mut volumes = volumes.as_array().unwrap().iter();
        let volume = volumes.find(|volume| volume["name"] == "module").unwrap();
        assert!(
            volume["configMap"].is_null() || module <= 1 << 20,
            "{values:?}: {volume}, and the module has {module} bytes"
        );
    }
}

/// Envoy ends at once on SIGTERM, and breaks off every stream: the pod has to wait before.
#[test]
fn a_gateway_that_is_replaced_serves_its_streams_first() {
    let gateway = plain();
    let pod = &deployment(&gateway, "gateway")["spec"]["template"]["spec"];
    let waits = pod["containers"][0].pointer("/lifecycle/preStop/sleep/seconds");
    let waits = waits.and_then(Value::as_u64).unwrap();
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!((60..grace).contains(&waits), "{waits} of {grace} seconds");
    // Kubernetes before 1.30 would refuse it.
    if let Some(output) = helm(&["template", "--kube-version", "1.29.0"]) {
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !text.contains("preStop:"));
    }
}

#[test]
fn the_plain_manifests_give_away_nothing_and_fit_together() {
    let objects = plain();
    check_locks(&objects);
    check_references(&objects);
    let host = deployment(&objects, "host");
    let container = &host["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], 1);
    let image = container["image"].as_str().unwrap();
    assert!(image.contains("/host-cuda:"), "{image}");
    assert!(has_argument(&objects, "--device=cuda:0"));
}

#[test]
fn a_host_without_gpus_computes_on_the_cpu() {
    let Some(text) = rendered(&["host.gpus=0"]) else {
        return;
    };
    let objects = objects(&text);
    assert!(has_argument(&objects, "--device=cpu") && !has_argument(&objects, "--device=cuda:0"));
}

/// Returns whether the host is started with an argument.
fn has_argument(objects: &[Value], argument: &str) -> bool {
    let host = deployment(objects, "host");
    let arguments = &host["spec"]["template"]["spec"]["containers"][0]["args"];
    arguments.as_array().unwrap().contains(&argument.into())
}

#[test]
fn envoy_and_the_filter_accept_the_gateways_configuration() {
    for values in VALUES {
        let objects = match (values, rendered(values)) {
            (_, Some(text)) => objects(&text),
            ([], None) => plain(),
            (_, None) => return,
        };
        let config = objects
            .iter()
            .find(|object| object["kind"] == "ConfigMap")
            .unwrap();
        let config = config["data"]["envoy.yaml"].as_str().unwrap();
        let envoy: Value = serde_saphyr::from_str(config).unwrap();
        let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
        let manager = envoy.pointer(manager).unwrap();
        let filters = manager["http_filters"].as_array().unwrap();
        let (filter, plugin) = plugin(manager);
        let routed = routed(&manager["route_config"]["virtual_hosts"][0]);
        assert!(
            plugin.routes.iter().all(|route| routed.contains(route)),
            "{routed:?}"
        );
        assert_eq!(routed.len(), plugin.routes.len() + 2, "{routed:?}");
        let limits = filters.len() - 2;
        let unlimited = values.contains(&"gateway.requestsPerSecond=0");
        assert_eq!(limits, usize::from(!unlimited), "{values:?}");
        // Where the pod mounts the module, and where it lies here.
        let mounted = filter["vm_config"]["code"]["local"]["filename"]
            .as_str()
            .unwrap();
        let here = filter_module().unwrap();
        let config = config.replace(mounted, here.to_str().unwrap());
        Gateway::validate(&config).unwrap();
    }
}

/// The filter's configuration and the plugin's.
fn plugin(manager: &Value) -> (&Value, Config) {
    let mut filters = manager["http_filters"].as_array().unwrap().iter();
    let filter = filters.find(|filter| filter["name"] == "foreword");
    let filter = &filter.unwrap()["typed_config"]["config"];
    let plugin = filter["configuration"]["value"].as_str().unwrap();
    (filter, Config::from_json(plugin.as_bytes()).unwrap())
}

#[test]
fn with_salts_the_charts_own_host_serves_every_route_and_the_filter_fails_closed() {
    let salt = [
        "gateway.plugin.tenant.header=x-tenant",
        "gateway.plugin.salt.key_env=K",
    ];
    for more in ["host.feedKeySecret=", "host.feedKeySecret=feed"] {
        let Some(text) = rendered(&[salt[0], salt[1], more]) else {
            return;
        };
        let objects = objects(&text);
        let map = objects.iter().find(|object| object["kind"] == "ConfigMap");
        let config = map.unwrap()["data"]["envoy.yaml"].as_str().unwrap();
        let envoy: Value = serde_saphyr::from_str(config).unwrap();
        let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
        let (filter, plugin) = plugin(envoy.pointer(manager).unwrap());
        assert!(
            plugin.salt.is_some() && plugin.unsalted_routes.is_empty(),
            "{more}"
        );
        assert_eq!(filter["failure_policy"], "FAIL_RELOAD");
    }
}

/// The exact paths that go to an engine; nothing else does.
fn routed(host: &Value) -> Vec<String> {
    let routes = host["routes"].as_array().unwrap().iter();
    let to_engine = routes.filter(|route| route["route"].is_object());
    to_engine
        .map(|route| route["match"]["path"].as_str().unwrap().to_owned())
        .collect()
}

fn deployment<'a>(objects: &'a [Value], component: &str) -> &'a Value {
    let found = objects.iter().find(|object| {
        object["kind"] == "Deployment"
            && object["metadata"]["labels"]["app.kubernetes.io/component"] == component
    });
    found.unwrap()
}

/// Every workload is closed ([`check_closed`]), is watched, and is bounded.
fn check_locks(objects: &[Value]) {
    check_closed(objects);
    for object in workloads(objects) {
        let name = &object["metadata"]["name"];
        for container in containers(object) {
            for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
                assert!(container[probe].is_object(), "{name} has no {probe}");
            }
            assert!(
                container["resources"]["limits"]["memory"].is_string(),
                "{name}"
            );
        }
    }
}

fn workloads(objects: &[Value]) -> impl Iterator<Item = &Value> {
    let runs = |object: &&Value| object["spec"]["template"]["spec"]["containers"].is_array();
    objects.iter().filter(runs)
}

fn containers(workload: &Value) -> &[Value] {
    workload["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap()
}

/// A workload has no rights that it does not need: no token of a service account, no root, no file system to write to, images by
/// digest. An external processor asks its clients for certificates. A network policy says who may reach its ports, by name except for the gateway's port for clients.
fn check_closed(objects: &[Value]) {
    for object in workloads(objects) {
        let template = &object["spec"]["template"];
        let pod = &template["spec"];
        let name = &object["metadata"]["name"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
            "{name}"
        );
        assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
        let policies = objects.iter().filter(|it| it["kind"] == "NetworkPolicy");
        let labels = template["metadata"]["labels"].as_object().unwrap();
        let selects = |policy: &&Value| {
            let selector = policy["spec"]["podSelector"]["matchLabels"].as_object();
            let mut selector = selector.unwrap().iter();
            selector.all(|(key, value)| labels.get(key) == Some(value))
        };
        let policies: Vec<&Value> = policies.filter(selects).collect();
        let [policy] = policies[..] else {
            panic!("{name} has {} network policies", policies.len());
        };
        assert!(
            policy["spec"]["policyTypes"]
                .as_array()
                .unwrap()
                .contains(&json!("Ingress")),
            "{name}"
        );
        let is_gateway = labels.get("app.kubernetes.io/component") == Some(&json!("gateway"));
        for rule in policy["spec"]["ingress"].as_array().unwrap() {
            let ports = rule["ports"].as_array().unwrap();
            let is_for_clients = is_gateway && *ports == [json!({"port": "http"})];
            let peers = rule["from"].as_array().map_or(0, Vec::len);
            assert!(peers > 0 || is_for_clients, "{name}: {rule}");
        }
        for container in containers(object) {
            let rights = &container["securityContext"];
            assert_eq!(rights["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(rights["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(rights["capabilities"]["drop"], json!(["ALL"]), "{name}");
            let image = container["image"].as_str().unwrap();
            let digest = image.split_once("@sha256:").map(|(_, digest)| digest.len());
            assert_eq!(digest, Some(64), "{name}: {image}");
            // Prompts in any tenant's name: on loopback, or from who shows a certificate.
            let arguments = container["args"].as_array().into_iter().flatten();
            let arguments: Vec<&str> = arguments.filter_map(Value::as_str).collect();
            let says = |option: &str| arguments.iter().any(|it| it.starts_with(option));
            assert!(
                arguments.first() != Some(&"ext-proc")
                    || says("--listen=127.0.0.1:")
                    || [
                        "--tls-certificate=",
                        "--tls-key=",
                        "--tls-client-authority="
                    ]
                    .into_iter()
                    .all(says),
                "{name}: {arguments:?}"
            );
        }
    }
}

/// The YAML files under `gateway-config`, except the chart's templates, with the objects in them.
fn shipped() -> Vec<(String, Vec<Value>)> {
    let mut folders = vec![repository().join("gateway-config")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("templates") {
                folders.push(path);
            } else if path.extension().is_some_and(|name| name == "yaml") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.display().to_string(), objects(&text)));
            }
        }
    }
    found
}

/// Calls `each` on every object in a value, with the texts of ConfigMaps read as YAML.
fn walk(value: &Value, each: &mut impl FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            each(fields);
            fields.values().for_each(|value| walk(value, each));
        }
        Value::Array(items) => items.iter().for_each(|item| walk(item, each)),
        Value::String(text)
            if text.contains("http_filters") || text.trim_start().starts_with('{') =>
        {
            let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap_or_default();
            let documents = documents.iter().filter(|document| document.is_object());
            documents.for_each(|document| walk(document, each));
        }
        _ => {}
    }
}

#[test]
fn every_shipped_manifest_is_closed() {
    let (mut files, mut workloads_found, mut processors) = (0, 0, 0);
    for (file, objects) in shipped() {
        files += 1;
        check_closed(&objects);
        workloads_found += workloads(&objects).count();
        let (mut is_salted, mut fails_open) = (false, false);
        let mut called: Vec<String> = Vec::new();
        let mut clusters: Vec<Value> = Vec::new();
        for object in &objects {
            walk(object, &mut |fields| {
                is_salted |= fields.get("salt").is_some_and(Value::is_object);
                let is = |name: &str, value: Value| fields.get(name) == Some(&value);
                fails_open |= is("failure_mode_allow", json!(true)) || is("failOpen", json!(true));
                let mode = fields.get("failureMode").and_then(Value::as_str);
                fails_open |= mode.is_some_and(|mode| mode.eq_ignore_ascii_case("failopen"));
                let kind = fields.get("@type").and_then(Value::as_str);
                if kind.is_some_and(|kind| kind.ends_with("ext_proc.v3.ExternalProcessor")) {
                    let name = &fields["grpc_service"]["envoy_grpc"]["cluster_name"];
                    called.push(name.as_str().unwrap().to_owned());
                }
                if fields.contains_key("load_assignment") {
                    clusters.push(Value::Object(fields.clone()));
                }
            });
        }
        assert!(
            !(is_salted && fails_open),
            "{file}: salts, and it fails open"
        );
        // Where the file says where the processor is, prompts go there on loopback or with certificates.
        for cluster in clusters
            .iter()
            .filter(|it| called.iter().any(|name| it["name"] == **name))
        {
            processors += 1;
            let endpoints = cluster["load_assignment"].to_string();
            let is_local =
                endpoints.contains(r#""address":"127.0.0.1""#) || endpoints.contains(r#""pipe""#);
            assert!(
                is_local || cluster["transport_socket"].is_object(),
                "{file}: {endpoints}"
            );
        }
    }
    assert!(
        files >= 24 && workloads_found >= 4 && processors >= 2,
        "{files} files, {workloads_found} workloads, {processors} processors"
    );
}

#[test]
fn an_open_manifest_is_found() {
    let text =
        fs::read_to_string(repository().join("gateway-config/kubernetes/ext-proc.yaml")).unwrap();
    for (closed, open) in [
        ("      automountServiceAccountToken: false\n", ""),
        (
            "readOnlyRootFilesystem: true",
            "readOnlyRootFilesystem: false",
        ),
        ("@sha256:", ":"),
        ("--tls-client-authority=", "--tls-other="),
        ("kind: NetworkPolicy", "kind: Other"),
        ("values: [llm", "values: [other"),
    ] {
        assert!(text.contains(closed), "{closed}");
        let objects = objects(&text.replace(closed, open));
        let is_open = std::panic::catch_unwind(|| check_closed(&objects)).is_err();
        assert_eq!(is_open, !closed.starts_with("values"), "{closed}");
    }
}

#[test]
fn an_engine_publishes_its_events_on_loopback() {
    let script = fs::read_to_string(repository().join("gateway-config/vllm/engine.sh")).unwrap();
    let endpoints = script
        .match_indices("tcp://")
        .map(|(at, _)| &script[at + 6..]);
    let endpoints: Vec<&str> = endpoints.filter(|rest| !rest.starts_with('$')).collect();
    assert!(endpoints.len() >= 4, "{endpoints:?}");
    for endpoint in endpoints {
        let is_local = ["127.0.0.1:", "[::ffff:127.0.0.1]:"]
            .iter()
            .any(|host| endpoint.starts_with(host));
        assert!(is_local, "{endpoint}");
    }
    assert!(
        !script.contains("0.0.0.0") && !script.contains("*:"),
        "{script}"
    );
}

/// Whatever names something by label, port or volume names something that is there; every pod has a service, a budget
/// and a network policy.
fn check_references(objects: &[Value]) {
    for deployment in objects
        .iter()
        .filter(|object| object["kind"] == "Deployment")
    {
        let name = &deployment["metadata"]["name"];
        let template = &deployment["spec"]["template"];
        let labels = template["metadata"]["labels"].as_object().unwrap();
        let selects = |selector: &Value| {
            let selector = selector.as_object().unwrap();
            selector
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
        };
        assert!(
            selects(&deployment["spec"]["selector"]["matchLabels"]),
            "{name}"
        );
        let container = &template["spec"]["containers"][0];
        let ports: Vec<&Value> = container["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|port| &port["name"])
            .collect();
        let mounts = container["volumeMounts"].as_array().unwrap().iter();
        let volumes = template["spec"]["volumes"].as_array().unwrap();
        for mount in mounts {
            assert!(
                volumes.iter().any(|volume| volume["name"] == mount["name"]),
                "{name}: {mount}"
            );
        }
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            let probe = &container[probe];
            let port = probe
                .pointer("/httpGet/port")
                .or(probe.pointer("/tcpSocket/port"));
            assert!(ports.contains(&port.unwrap()), "{name}: {probe}");
        }
        let of = |kind: &str, selector: &str| {
            let mut found = objects.iter().filter(|object| object["kind"] == kind);
            found
                .find(|object| selects(object["spec"].pointer(selector).unwrap()))
                .unwrap_or_else(|| panic!("{name} has no {kind}"))
        };
        of("PodDisruptionBudget", "/selector/matchLabels");
        for port in of("Service", "/selector")["spec"]["ports"]
            .as_array()
            .unwrap()
        {
            assert!(ports.contains(&&port["targetPort"]), "{name}: {port}");
        }
        let policy = of("NetworkPolicy", "/podSelector/matchLabels");
        assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
        let ingress = policy["spec"]["ingress"].as_array().unwrap().iter();
        for port in ingress.flat_map(|rule| rule["ports"].as_array().unwrap()) {
            assert!(ports.contains(&&port["port"]), "{name}: {port}");
        }
    }
}
