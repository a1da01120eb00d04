//! Real Envoy, with or without the filter.
//!
//! The configuration is the shipped file `gateway-config/envoy/envoy.yaml`, or `dynamic-module.yaml` or `ext-proc.yaml`
//! next to it. Ports, paths and the plugin's JSON are replaced. Each replacement must match exactly once, so a change
//! of the files cannot go unnoticed.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::artifacts::{dynamic_module, envoy_binary, filter_module, repository};
use crate::ext_proc::{self, ExtProc};
use crate::http::{self, Client};
use crate::process::{Process, Watch};
use crate::wait::{pause, until};

/// How the filter runs in Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shell {
    /// As a Wasm module, with a VM per worker.
    Wasm,
    /// As a dynamic module, in Envoy's process.
    Dynamic,
    /// As an external processor, in its own process, with buffered bodies.
    ExtProc,
    /// As an external processor, with bodies streamed in both directions.
    ExtProcDuplex,
}

impl Shell {
    /// Returns the shell in the environment variable `FOREWORD_SHELL`: `wasm` (the default), `dynamic`, `ext-proc` or
    /// `ext-proc-duplex`. So one test suite runs with all of them.
    ///
    /// # Panics
    /// Panics when the variable has another value.
    pub fn chosen() -> Self {
        match std::env::var("FOREWORD_SHELL").as_deref() {
            Err(_) | Ok("wasm") => Self::Wasm,
            Ok("dynamic") => Self::Dynamic,
            Ok("ext-proc") => Self::ExtProc,
            Ok("ext-proc-duplex") => Self::ExtProcDuplex,
            Ok(other) => panic!(
                "FOREWORD_SHELL is {other:?}, not \"wasm\", \"dynamic\", \"ext-proc\" or \"ext-proc-duplex\""
            ),
        }
    }

    fn template(self) -> &'static str {
        match self {
            Self::Wasm => "gateway-config/envoy/envoy.yaml",
            Self::Dynamic => "gateway-config/envoy/dynamic-module.yaml",
            Self::ExtProc | Self::ExtProcDuplex => EXT_PROC_TEMPLATE,
        }
    }

    /// Returns whether the filter runs in its own process.
    pub fn is_ext_proc(self) -> bool {
        matches!(self, Self::ExtProc | Self::ExtProcDuplex)
    }

    pub(crate) fn module(self) -> Result<PathBuf> {
        match self {
            Self::Wasm => filter_module(),
            Self::Dynamic => {
                static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
                let build = || dynamic_module("dev").map_err(|error| format!("{error:#}"));
                BUILT.get_or_init(build).clone().map_err(anyhow::Error::msg)
            }
            Self::ExtProc | Self::ExtProcDuplex => ext_proc::program(),
        }
    }

    /// Returns the module's path in the template; `None` if it has none.
    fn module_path(self) -> Option<&'static str> {
        match self {
            Self::Wasm => Some("target/wasm32-wasip1/wasm/foreword_filter.wasm"),
            Self::Dynamic => Some("target/release/libforeword_dynamic.so"),
            Self::ExtProc | Self::ExtProcDuplex => None,
        }
    }

    /// Returns Envoy's prefix of the filter's metrics.
    fn metric_prefix(self) -> &'static str {
        match self {
            Self::Wasm => "wasmcustom.",
            Self::Dynamic => "dynamicmodulescustom.",
            Self::ExtProc | Self::ExtProcDuplex => "",
        }
    }
}

/// How Envoy chooses among several engines if no header names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// As configured in `engines.yaml`.
    LeastRequest,
    /// Round robin.
    RoundRobin,
}

/// The paths that a gateway forwards to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paths {
    /// The paths of `envoy.yaml`: the watched ones and those without a prompt, compared after normalization.
    Listed,
    /// Every path, unchanged. With such a configuration, only the filter checks paths.
    All,
}

/// Options of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// The address to which the gateway forwards requests.
    pub upstream: SocketAddr,
    /// Three engines instead of `upstream`, as in `gateway-config/envoy/engines.yaml`.
    pub engines: Option<[SocketAddr; 3]>,
    /// Addresses of the engines' KV feeds; `None` if they are the engines' own.
    pub feeds: Option<[SocketAddr; 3]>,
    /// Further clusters that the plugin may call, of one address each.
    pub clusters: Vec<(&'static str, SocketAddr)>,
    /// How Envoy chooses an engine if no header names one.
    pub fallback: Fallback,
    /// The paths that are forwarded to an engine.
    pub paths: Paths,
    /// Whether to keep the shipped rate limit. It is far above the tests' load, and below the benches'.
    pub rate_limit: bool,
    /// The plugin's configuration; `None` for Envoy without the filter.
    pub plugin: Option<Value>,
    /// Whether documents may be in any place unless `plugin` says otherwise, since most tests are not about ranks.
    pub places_freely: bool,
    /// Number of worker threads, each with its own VM and trees.
    pub concurrency: u32,
    /// How the filter runs.
    pub shell: Shell,
    /// A regular expression for the origins whose web pages may call the gateway; `None` for no page.
    pub pages: Option<String>,
    /// The filter's module, or the external processor's program; `None` to build it.
    pub module: Option<PathBuf>,
    /// An external processor shared with other gateways; `None` to start one if the shell needs it.
    pub ext_proc: Option<Arc<ExtProc>>,
    /// Further replacements in Envoy's configuration, each of which must match once.
    pub edits: Vec<(&'static str, String)>,
    /// Whether the filter's configuration is in its own file that Envoy watches, which [`Gateway::reload`] requires.
    pub reloadable: bool,
    /// Whether Envoy lets the filter pause at the headers (`allow_on_headers_stop_iteration`). The resources of Istio
    /// and Envoy Gateway cannot configure that.
    pub headers_may_wait: bool,
    /// YAML, without indentation, of filters before Foreword's, or instead of it.
    pub filters_before: Option<String>,
    /// Envoy's environment variables, which the filter may read.
    pub environment: Vec<(&'static str, String)>,
    /// Whether Envoy logs all messages of the filter and its VM.
    pub verbose: bool,
}

impl GatewayOptions {
    /// Returns the options of a gateway with one worker that may put documents in any place.
    pub fn placing_freely(upstream: SocketAddr) -> Self {
        Self {
            places_freely: true,
            ..Self::new(upstream)
        }
    }

    /// Returns `plugin` with this gateway's settings.
    fn given(&self, plugin: &Value) -> Value {
        let mut plugin = plugin.clone();
        if self.places_freely
            && let Some(fields) = plugin.as_object_mut()
        {
            let ordering = fields.entry("ordering").or_insert_with(|| json!({}));
            if let Some(ordering) = ordering.as_object_mut() {
                ordering
                    .entry("rank")
                    .or_insert_with(|| json!({"place": "free"}));
            }
        }
        plugin
    }

    /// Returns the options of a gateway with one worker and the filter's defaults.
    pub fn new(upstream: SocketAddr) -> Self {
        Self {
            upstream,
            engines: None,
            feeds: None,
            clusters: Vec::new(),
            fallback: Fallback::LeastRequest,
            paths: Paths::Listed,
            rate_limit: false,
            plugin: Some(Value::Object(serde_json::Map::new())),
            places_freely: false,
            concurrency: 1,
            shell: Shell::chosen(),
            pages: None,
            module: None,
            ext_proc: None,
            edits: Vec::new(),
            reloadable: false,
            headers_may_wait: true,
            filters_before: None,
            environment: Vec::new(),
            verbose: false,
        }
    }
}

/// A running Envoy; it stops when this is dropped.
#[derive(Debug)]
pub struct Gateway {
    process: Process,
    address: SocketAddr,
    admin: SocketAddr,
    folder: TempDir,
    shell: Shell,
    /// The external processor, if the filter runs in one.
    ext_proc: Option<Arc<ExtProc>>,
    /// The watched file's text, with [`PLUGIN`] where the plugin's configuration goes.
    watched: Option<String>,
}

impl Gateway {
    /// Starts Envoy, and returns when it accepts requests. An error includes the end of Envoy's log.
    pub fn start(options: &GatewayOptions) -> Result<Self> {
        let options = &GatewayOptions {
            plugin: options.plugin.as_ref().map(|plugin| options.given(plugin)),
            ..options.clone()
        };
        let module = match (&options.plugin, &options.module) {
            (None, _) => None,
            (Some(_), Some(module)) => Some(module.clone()),
            (Some(_), None) => Some(options.shell.module()?),
        };
        let template = match options.engines {
            None => shipped(options.shell.template())?,
            Some(_) => with_shell(&shipped(ENGINES_TEMPLATE)?, options.shell)?,
        };
        let folder = tempfile::Builder::new()
            .prefix("foreword-gateway-")
            .tempdir()?;
        let config = folder.path().join("envoy.yaml");
        let ext_proc = match (&options.plugin, &module, &options.ext_proc) {
            (Some(_), _, Some(running)) => Some(Arc::clone(running)),
            (Some(plugin), Some(program), None) if options.shell.is_ext_proc() => {
                let clusters = processor_clusters(options);
                let environment = &options.environment;
                Some(ExtProc::start(program, plugin, &clusters, environment)?)
            }
            _ => None,
        };
        let mut text = configuration(&template, options, module.as_deref())?;
        if let Some(ext_proc) = &ext_proc {
            text.push_str(&ext_proc_cluster(ext_proc.address())?);
        }
        for (from, to) in &options.edits {
            text = replace_once(&text, from, to)?;
        }
        let mut watched = None;
        if let (true, Some(plugin), None) = (options.reloadable, &options.plugin, &ext_proc) {
            let (with_discovery, filter) = discovered(&text, folder.path())?;
            let plugin = Value::from(plugin.to_string());
            let value = format!("value: {plugin}\n");
            watched = Some(replace_once(&filter, &value, PLUGIN)?);
            fs::write(folder.path().join("filter.yaml"), filter)?;
            text = with_discovery;
        }
        fs::write(&config, text)?;
        let gateway = Self::launch(folder, options)?;
        Ok(Self {
            watched,
            ext_proc,
            ..gateway
        })
    }

    /// Starts Envoy with a recipe, a file of `gateway-config/`. The filter's module, free ports and `replacements` are
    /// inserted; each must match once.
    pub fn recipe(file: &str, replacements: &[(&str, String)]) -> Result<Self> {
        let text = shipped(file)?;
        let module = Shell::Wasm.module()?;
        let module = module.to_str().context("the module's path is not UTF-8")?;
        let path = Shell::Wasm.module_path().unwrap_or_default();
        let mut text = replace_once(&text, path, &Value::from(module).to_string())?;
        let ports = ["port_value: 9901 ", "port_value: 10000 "];
        let ports = ports.map(|port| (port, "port_value: 0 ".to_owned()));
        for (from, to) in ports.iter().chain(replacements) {
            text = replace_once(&text, from, to)?;
        }
        let folder = tempfile::Builder::new()
            .prefix("foreword-gateway-")
            .tempdir()?;
        fs::write(folder.path().join("envoy.yaml"), text)?;
        // This address is unused: the recipe has its own.
        let options = GatewayOptions {
            shell: Shell::Wasm,
            ..GatewayOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)))
        };
        Self::launch(folder, &options)
    }

    /// Starts Envoy with the shipped configuration for an endpoint picker. `replacements` are inserted; each must match
    /// once.
    pub fn before_picker(picker: &Arc<ExtProc>, replacements: &[(&str, String)]) -> Result<Self> {
        let mut text = shipped("gateway-config/inference-extension/envoy.yaml")?;
        let port = format!("port_value: {} ", picker.address().port());
        let own = [
            ("port_value: 9901 ", "port_value: 0 ".to_owned()),
            ("port_value: 10000 ", "port_value: 0 ".to_owned()),
            ("port_value: 9002 ", port),
        ];
        for (from, to) in own.iter().chain(replacements) {
            text = replace_once(&text, from, to)?;
        }
        let folder = tempfile::Builder::new()
            .prefix("foreword-gateway-")
            .tempdir()?;
        fs::write(folder.path().join("envoy.yaml"), text)?;
        let options = GatewayOptions {
            shell: Shell::ExtProcDuplex,
            ..GatewayOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)))
        };
        let gateway = Self::launch(folder, &options)?;
        Ok(Self {
            ext_proc: Some(Arc::clone(picker)),
            ..gateway
        })
    }

    /// Makes Envoy check a configuration, in YAML or JSON, without starting. An error includes Envoy's message.
    pub fn validate(config: &str) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("envoy.yaml");
        fs::write(&file, config)?;
        let output = Command::new(envoy_binary()?)
            .args(["--mode", "validate", "-c"])
            .arg(&file)
            // The keys that a configuration reads from the environment, where a Secret would put them.
            .envs(["FOREWORD_FEED_KEY", "SALT_KEY"].map(|name| (name, "5a".repeat(32))))
            .output()?;
        let log = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{log}");
        Ok(())
    }

    /// Starts Envoy with the `envoy.yaml` in this folder.
    fn launch(folder: TempDir, options: &GatewayOptions) -> Result<Self> {
        let config = folder.path().join("envoy.yaml");
        let admin_file = folder.path().join("admin");
        let mut command = Command::new(envoy_binary()?);
        command
            .arg("-c")
            .arg(&config)
            .arg("--admin-address-path")
            .arg(&admin_file)
            .args(["--concurrency", &options.concurrency.to_string()])
            // Envoy requires a name if it receives configuration dynamically, even from a file.
            .args(["--service-node", "gateway", "--service-cluster", "gateways"])
            // Otherwise, several Envoys of one user would share memory.
            .arg("--disable-hot-restart");
        if !options.shell.is_ext_proc() {
            command.envs(options.environment.iter().cloned());
        }
        if options.verbose {
            command.args(["--component-log-level", "wasm:trace,dynamic_modules:trace"]);
        }
        let mut process = Process::start(command, Watch::Stderr, folder.path())?;
        process.wait_for(|line| line.contains("starting main dispatch loop").then_some(()))?;

        let admin = fs::read_to_string(&admin_file).context("Envoy wrote no admin address")?;
        let admin: SocketAddr = admin.trim().parse().context("Envoy's admin address")?;
        let listeners = admin_get(admin, "/listeners?format=json")?;
        let listeners: Value = serde_json::from_str(&listeners)?;
        let socket = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
        let port = socket["port_value"]
            .as_u64()
            .and_then(|port| u16::try_from(port).ok())
            .with_context(|| format!("Envoy names no port: {listeners}"))?;
        Ok(Self {
            process,
            address: SocketAddr::new(admin.ip(), port),
            admin,
            folder,
            shell: options.shell,
            ext_proc: None,
            watched: None,
        })
    }

    /// Changes the filter's configuration. Returns when Envoy has accepted it, or an error if Envoy refuses it.
    pub fn reload(&self, plugin: &Value) -> Result<()> {
        const STATS: &str = "extension_config_discovery.http_filter.foreword.";
        if let Some(ext_proc) = &self.ext_proc {
            return ext_proc.reload(plugin);
        }
        let watched = self.watched.as_ref().context("not `reloadable`")?;
        let plugin = Value::from(plugin.to_string());
        let text = replace_once(watched, PLUGIN, &format!("value: {plugin}\n"))?;
        let count = |name: &str| -> Result<u64> {
            Ok(self.stat(&format!("{STATS}{name}"))?.unwrap_or_default())
        };
        let before = [count("config_reload")?, count("config_fail")?];
        let new = self.folder.path().join("filter.new");
        fs::write(&new, text)?;
        // Envoy watches for renames, so it never reads a half-written file.
        fs::rename(&new, self.folder.path().join("filter.yaml"))?;
        let deadline = Instant::now() + http::READ_LIMIT;
        loop {
            ensure!(
                count("config_fail")? == before[1],
                "Envoy refuses the configuration"
            );
            if count("config_reload")? > before[0] {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "Envoy did not take the configuration"
            );
            pause();
        }
    }

    /// Returns the address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of Envoy's admin endpoint.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Waits until exactly `count` requests are counted with an outcome. A VM publishes its counts at its ticks.
    ///
    /// # Panics
    /// Panics when that takes more than a minute.
    #[track_caller]
    pub fn await_requests(&self, count: u64) {
        self.await_metric("foreword_requests_total", count);
    }

    /// Waits until another counter of the filter is exactly `count`.
    ///
    /// # Panics
    /// Panics when that takes more than a minute.
    #[track_caller]
    pub fn await_metric(&self, name: &str, count: u64) {
        until(&format!("{name} {count}"), || {
            self.metric(name).is_ok_and(|found| found == Some(count))
        });
    }

    /// Returns one of the filter's counters, such as `foreword_requests_total`, like [`Gateway::stat`].
    pub fn metric(&self, name: &str) -> Result<Option<u64>> {
        if let Some(ext_proc) = &self.ext_proc {
            return ext_proc.metric(name);
        }
        self.stat(&format!("{}{name}", self.shell.metric_prefix()))
    }

    /// Returns a counter or gauge of `/stats` by its full name; `None` if Envoy does not have it. Counters by reason
    /// exist from their first request on.
    pub fn stat(&self, name: &str) -> Result<Option<u64>> {
        let stats = admin_get(self.admin, "/stats")?;
        let value = stats
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value
            .map(|value| {
                value
                    .parse()
                    .with_context(|| format!("{name} is {value:?}"))
            })
            .transpose()
    }

    /// Returns the number of the filter's failures: VMs lost, or panics caught. They are counted in the log: Envoy
    /// counts a lost VM (`vm_reload_success`) only when a later request starts another, and `vm_reload` counts nothing.
    pub fn failures(&self) -> Result<u64> {
        let words = match self.shell {
            Shell::Wasm => "Uncaught RuntimeError",
            Shell::Dynamic | Shell::ExtProc | Shell::ExtProcDuplex => "foreword panicked",
        };
        Ok(self.log()?.matches(words).count() as u64)
    }

    /// Returns a page of the admin endpoint.
    pub fn admin_get(&self, path: &str) -> Result<String> {
        admin_get(self.admin, path)
    }

    /// Returns all metrics, Envoy's and the filter's, in Prometheus' format.
    pub fn prometheus(&self) -> Result<String> {
        let mut text = self.admin_get("/stats/prometheus")?;
        if let Some(ext_proc) = &self.ext_proc {
            text.push_str(&ext_proc.metrics()?);
        }
        Ok(text)
    }

    /// Returns the external processor, if the filter runs in one.
    pub fn ext_proc(&self) -> Option<&Arc<ExtProc>> {
        self.ext_proc.as_ref()
    }

    /// Returns the log of Envoy and the filter.
    pub fn log(&self) -> Result<String> {
        let mut log = self.process.log()?;
        if let Some(ext_proc) = &self.ext_proc {
            log.push_str(&ext_proc.log()?);
        }
        Ok(log)
    }

    /// Returns the YAML, without indentation, of Foreword's lines in Envoy's configuration.
    pub fn filter_yaml(&self) -> Result<String> {
        let text = fs::read_to_string(self.folder.path().join("envoy.yaml"))?;
        let (_, rest) = text.split_once(FILTER_BEGIN).context("no filter")?;
        let (lines, _) = rest.split_once(FILTER_END).context("no filter")?;
        let lines = lines.lines().skip(1);
        Ok(lines
            .map(|line| format!("{}\n", line.get(10..).unwrap_or_default()))
            .collect())
    }

    /// Stops Envoy gracefully. Returns its access log, one JSON object per line.
    pub fn stop(mut self) -> Result<String> {
        let quit = b"POST /quitquitquit HTTP/1.1\r\nhost: admin\r\ncontent-length: 0\r\n\r\n";
        http::exchange(self.admin, quit)?;
        self.process.wait()?;
        Ok(fs::read_to_string(self.folder.path().join("stdout.log"))?)
    }

    /// Returns the processor time used so far by Envoy, and by the external processor if there is one, in user and
    /// kernel mode, in steps of 10 ms.
    pub fn cpu_time(&self) -> Result<Duration> {
        let others = self.ext_proc.as_ref().map(|ext_proc| ext_proc.cpu_time());
        Ok(self.process.cpu_time()? + others.transpose()?.unwrap_or_default())
    }

    /// Returns the resident memory, in bytes, of Envoy, and of the external processor if there is one.
    pub fn resident_bytes(&self) -> Result<u64> {
        let others = (self.ext_proc.as_ref()).map(|ext_proc| ext_proc.resident_bytes());
        Ok(self.process.resident_bytes()? + others.transpose()?.unwrap_or_default())
    }
}

fn admin_get(admin: SocketAddr, path: &str) -> Result<String> {
    let mut client = Client::connect(admin)?;
    client.send(format!("GET {path} HTTP/1.1\r\nhost: admin\r\n\r\n").as_bytes())?;
    let response = client.response()?;
    ensure!(
        response.status == 200,
        "{path} answered {}",
        response.status
    );
    Ok(String::from_utf8(response.body)?)
}

/// Returns the text of a file in the repository.
fn shipped(file: &str) -> Result<String> {
    let path = repository().join(file);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns a Wasm module's configuration with the filter's lines rewritten for `shell`.
fn with_shell(text: &str, shell: Shell) -> Result<String> {
    if shell == Shell::Wasm {
        return Ok(text.to_owned());
    }
    let other = shipped(shell.template())?;
    let text = &match shell.is_ext_proc() {
        true => with_metadata(text),
        false => text.to_owned(),
    };
    let (_, filter) = other.split_once(FILTER_BEGIN).context("no filter")?;
    let (filter, _) = filter.split_once(FILTER_END).context("no filter's end")?;
    replace_between(
        text,
        FILTER_BEGIN,
        FILTER_END,
        &format!("{FILTER_BEGIN}{filter}"),
    )
}

/// Returns a configuration whose access log reads its fields from an external processor's metadata.
fn with_metadata(text: &str) -> String {
    text.replace(
        "%FILTER_STATE(wasm.foreword.",
        "%DYNAMIC_METADATA(foreword:",
    )
    .replace(":PLAIN)%", ")%")
}

/// Returns the processor's cluster, the last lines of `ext-proc.yaml`, with its address.
fn ext_proc_cluster(address: SocketAddr) -> Result<String> {
    let template = shipped(EXT_PROC_TEMPLATE)?;
    let (_, cluster) = (template.split_once(EXT_PROC_CLUSTER)).context("no cluster")?;
    let port = format!("port_value: {} ", address.port());
    let cluster = replace_once(cluster, "port_value: 9002 ", &port)?;
    Ok(format!("{EXT_PROC_CLUSTER}{cluster}"))
}

/// Returns the clusters that an external processor may call, which the other shells configure in Envoy.
fn processor_clusters(options: &GatewayOptions) -> Vec<(String, SocketAddr)> {
    let feeds = options.feeds.or(options.engines);
    let feeds = ["feed-a", "feed-b", "feed-c"]
        .into_iter()
        .zip(feeds.into_iter().flatten());
    let more = options.clusters.iter().copied();
    let all = feeds.chain(more);
    all.map(|(name, address)| (name.to_owned(), address))
        .collect()
}

/// Returns the shipped configuration with this run's addresses, module and plugin configuration.
fn configuration(
    template: &str,
    options: &GatewayOptions,
    module: Option<&Path>,
) -> Result<String> {
    let upstream = options.upstream;
    let (before, _) = template
        .split_once(EXT_PROC_CLUSTER)
        .unwrap_or((template, ""));
    let mut text = before.to_owned();
    for (from, to) in [
        ("port_value: 9901 ", "port_value: 0 ".to_owned()),
        ("port_value: 10000 ", "port_value: 0 ".to_owned()),
    ] {
        text = replace_once(&text, from, &to)?;
    }
    text = with_paths(&text, options)?;
    if !options.rate_limit {
        let tokens = "max_tokens: 2000, tokens_per_fill: 1000,";
        text = replace_once(
            &text,
            tokens,
            "max_tokens: 4000000000, tokens_per_fill: 4000000000,",
        )?;
    }
    let engines = options.engines.iter().flatten().zip(8001..);
    let feeds = options.feeds.or(options.engines);
    let feeds = feeds.iter().flatten().zip(9001..);
    for (engine, port) in engines.chain(feeds) {
        let place = format!("address: 127.0.0.1, port_value: {port} ");
        ensure!(text.contains(&place), "engines.yaml has no {place:?}");
        let engine = format!("address: {}, port_value: {} ", engine.ip(), engine.port());
        text = text.replace(&place, &engine);
    }
    if options.fallback == Fallback::RoundRobin {
        for (from, to) in [
            ("policies.least_request\n", "policies.round_robin\n"),
            ("least_request.v3.LeastRequest", "round_robin.v3.RoundRobin"),
        ] {
            text = replace_once(&text, from, to)?;
        }
    }
    if options.engines.is_none() {
        text = replace_once(
            &text,
            "address: 127.0.0.1, port_value: 8000 ",
            &format!(
                "address: {}, port_value: {} ",
                upstream.ip(),
                upstream.port()
            ),
        )?;
    }
    // The list of clusters is the last part of the file.
    for (name, address) in &options.clusters {
        let [ip, port] = [address.ip().to_string(), address.port().to_string()];
        text.push_str(&format!(
            "  - name: {name}\n    type: STATIC\n    connect_timeout: 1s\n    load_assignment:\n      cluster_name: {name}\n      \
             endpoints:\n      - lb_endpoints:\n        - endpoint: {{ address: {{ socket_address: {{ address: {ip}, \
             port_value: {port} }} }} }}\n"
        ));
    }
    if let Some(pages) = &options.pages {
        text = with_pages(&text, pages)?;
    }
    let (Some(plugin), Some(module)) = (&options.plugin, module) else {
        let others = options.filters_before.as_deref().unwrap_or_default();
        return replace_between(&text, FILTER_BEGIN, FILTER_END, &indented(others, 10));
    };
    // Every JSON string is a YAML string.
    let module = Value::from(module.to_str().context("the module's path is not UTF-8")?);
    if let Some(path) = options.shell.module_path() {
        text = replace_once(&text, path, &module.to_string())?;
    }
    if options.shell == Shell::ExtProcDuplex {
        for (from, to) in DUPLEX {
            text = replace_once(&text, from, to)?;
        }
    }
    if !options.environment.is_empty() && options.shell == Shell::Wasm {
        let names = options.environment.iter().map(|(name, _)| *name);
        let names = names.collect::<Vec<_>>().join(", ");
        let runtime = "runtime: envoy.wasm.runtime.v8\n";
        let variables = format!("environment_variables: {{ host_env_keys: [{names}] }}");
        text = replace_once(
            &text,
            runtime,
            &format!("{runtime}{}", indented(&variables, 18)),
        )?;
    }
    // A dynamic module may always pause at the headers.
    if !options.headers_may_wait && options.shell == Shell::Wasm {
        text = replace_once(&text, "allow_on_headers_stop_iteration: true", "")?;
    }
    if !options.shell.is_ext_proc() {
        let plugin = Value::from(plugin.to_string());
        text = replace_between(
            &text,
            "value: |\n",
            FILTER_END,
            &format!("value: {plugin}\n"),
        )?;
    }
    match &options.filters_before {
        None => Ok(text),
        Some(filters) => {
            let behind = "          http_filters:\n";
            replace_once(&text, behind, &format!("{behind}{}", indented(filters, 10)))
        }
    }
}

/// Returns the configuration with the chosen routes: the shipped ones and the plugin's further watched paths, or one
/// route for everything.
fn with_paths(text: &str, options: &GatewayOptions) -> Result<String> {
    let route = |path: &str| format!("              - match: {{ path: {path} }}\n");
    match options.paths {
        Paths::Listed => {
            let watched = options.plugin.as_ref();
            let watched = watched.and_then(|plugin| plugin["routes"].as_array());
            let mut more = String::new();
            for path in watched.into_iter().flatten().filter_map(Value::as_str) {
                if path.contains('{') {
                    more += &format!(
                        "              - match: {{ safe_regex: {{ regex: {:?} }} }}\n                route: *engine\n",
                        regex_of(path)
                    );
                } else if !text.contains(&route(path)) {
                    more += &format!(
                        "{}                route: *engine\n",
                        route(&format!("{path:?}"))
                    );
                }
            }
            let last = route("/v1/models");
            replace_once(text, &last, &format!("{more}{last}"))
        }
        Paths::All => {
            let mut text = replace_between(text, &route("/v1/messages"), "\n  clusters:\n", "")?;
            for (from, to) in [
                (
                    "match: { path: /v1/chat/completions }",
                    "match: { prefix: / }",
                ),
                ("normalize_path: true", "normalize_path: false"),
                ("merge_slashes: true", "merge_slashes: false"),
                ("action: REJECT_REQUEST\n", "action: KEEP_UNCHANGED\n"),
            ] {
                text = replace_once(&text, from, to)?;
            }
            Ok(text)
        }
    }
}

/// Returns a regular expression for the paths of a route with names in braces.
fn regex_of(route: &str) -> String {
    let mut parts = route.split('{');
    let mut regex = parts.next().unwrap_or_default().replace('.', "[.]");
    for part in parts {
        let (_, behind) = part.split_once('}').unwrap_or_default();
        regex += "[^/]+";
        regex += &behind.replace('.', "[.]");
    }
    regex
}

/// Returns the configuration with the filter in its own file in `folder`, and that file's text.
fn discovered(text: &str, folder: &Path) -> Result<(String, String)> {
    let (before, filter) = text.split_once(FILTER_BEGIN).context("no filter")?;
    let (filter, after) = filter.split_once(FILTER_END).context("no filter's end")?;
    let (_, filter) = filter
        .split_once("          - name: foreword\n            typed_config:\n")
        .context("the filter begins otherwise")?;
    let kind = filter
        .lines()
        .find_map(|line| line.trim().strip_prefix("\"@type\": "))
        .context("the filter has no type")?;
    let path = folder.join("filter.yaml");
    let path = path.to_str().context("the folder's path is not UTF-8")?;
    let discovery = format!(
        "          - name: foreword\n            config_discovery:\n              config_source: {{ path_config_source: \
         {{ path: {path:?} }} }}\n              type_urls: [{kind:?}]\n"
    );
    let filter = format!(
        "resources:\n- \"@type\": type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig\n  name: foreword\n  \
         typed_config:\n{filter}"
    );
    Ok((format!("{before}{discovery}{after}"), filter))
}

/// Inserts the two documents of `cors.yaml` into the configuration, where that file's comments say.
fn with_pages(text: &str, origins: &str) -> Result<String> {
    let cors = shipped("gateway-config/envoy/cors.yaml")?;
    let (filter, host) = cors
        .split_once("---\n")
        .context("cors.yaml has no second document")?;
    let origins = format!("safe_regex: {{ regex: {} }}", Value::from(origins));
    let host = replace_once(host, "exact: http://localhost:8080", &origins)?;
    let mut text = text.to_owned();
    for (behind, yaml, indent) in [
        ("          http_filters:\n", filter, 10),
        ("              domains: [\"*\"]\n", host.as_str(), 14),
    ] {
        text = replace_once(
            &text,
            behind,
            &format!("{behind}{}", indented(yaml, indent)),
        )?;
    }
    Ok(text)
}

fn indented(yaml: &str, indent: usize) -> String {
    yaml.lines()
        .map(|line| format!("{:indent$}{line}\n", ""))
        .collect()
}

fn replace_once(text: &str, from: &str, to: &str) -> Result<String> {
    // Comments also contain addresses, but not with this YAML around them.
    match text.matches(from).count() {
        1 => Ok(text.replacen(from, to, 1)),
        count => bail!("envoy.yaml has {from:?} {count} times, not once"),
    }
}

/// Replaces `begin` and the text after it up to `end`, which is kept.
fn replace_between(text: &str, begin: &str, end: &str, to: &str) -> Result<String> {
    let missing = || format!("envoy.yaml has no {begin:?} … {end:?}");
    let (before, rest) = text.split_once(begin).with_context(missing)?;
    let (_, after) = rest.split_once(end).with_context(missing)?;
    Ok(format!("{before}{to}{end}{after}"))
}

const ENGINES_TEMPLATE: &str = "gateway-config/envoy/engines.yaml";
const EXT_PROC_TEMPLATE: &str = "gateway-config/envoy/ext-proc.yaml";

/// The line before the processor's cluster, the last part of `ext-proc.yaml`.
const EXT_PROC_CLUSTER: &str = "  # The processor.";

/// The replacements in `ext-proc.yaml` for streaming bodies in both directions.
const DUPLEX: [(&str, &str); 3] = [
    (
        "request_body_mode: BUFFERED\n",
        "request_body_mode: FULL_DUPLEX_STREAMED\n",
    ),
    (
        "response_body_mode: STREAMED\n",
        "response_body_mode: FULL_DUPLEX_STREAMED\n",
    ),
    (
        "allow_mode_override: true\n",
        "allow_mode_override: false\n",
    ),
];

/// Placeholder for a plugin's configuration.
const PLUGIN: &str = "{{plugin}}\n";

/// Foreword's lines in an Envoy configuration are between these.
const FILTER_BEGIN: &str = "          # Foreword: begin.";
const FILTER_END: &str = "          # Foreword: end.";
