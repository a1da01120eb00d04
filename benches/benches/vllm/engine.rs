//! vLLM itself, on a checkpoint that was made for it.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use foreword_tests::artifacts::repository;
use foreword_tests::http::{Client, exchange};
use tempfile::TempDir;

/// A running vLLM; its processes end when this is dropped.
pub(crate) struct Vllm {
    child: Child,
    folder: TempDir,
    python: PathBuf,
    pages: Option<u32>,
    pub(crate) address: SocketAddr,
    /// Addresses on which it publishes KV events and replays them.
    pub(crate) events: SocketAddr,
    pub(crate) replay: SocketAddr,
}

/// The name under which it serves the model.
pub(crate) const MODEL: &str = "tiny";

/// Memory for KV state, in whole GiB, so large that nothing of the bench's is evicted.
const KV_GIB: &str = "1";

/// Longest start of the engine, which compiles what it runs.
const START_LIMIT: Duration = Duration::from_secs(600);

impl Vllm {
    /// Starts vLLM on `python`, which has it installed, with room for this many pages of KV state; `None` for as many
    /// as fit into [`KV_GIB`].
    pub(crate) fn start(python: &Path, xquad: &Path, pages: Option<u32>) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("foreword-vllm-")
            .tempdir()?;
        let model = folder.path().join("model");
        let script = repository().join("benches/peers/vllm_checkpoint.py");
        let made = Command::new(python)
            .arg(script)
            .args([xquad, &model])
            .env("HF_HUB_OFFLINE", "1")
            .stderr(File::create(folder.path().join("checkpoint.log"))?)
            .status()
            .with_context(|| format!("cannot run {}", python.display()))?;
        ensure!(made.success(), "no checkpoint could be made ({made})");
        let [address, events, replay] = ports()?;
        let child = launch(python, folder.path(), pages, [address, events, replay])?;
        let mut vllm = Self {
            child,
            folder,
            python: python.to_owned(),
            pages,
            address,
            events,
            replay,
        };
        vllm.wait()?;
        Ok(vllm)
    }

    /// Kills it, as a machine that fails does: nothing is said to anyone, and its cache is gone.
    pub(crate) fn kill(&mut self) {
        self.signal("KILL");
    }

    /// Starts a killed one again, at the same addresses, and waits until it serves.
    pub(crate) fn revive(&mut self) -> Result<()> {
        let addresses = [self.address, self.events, self.replay];
        self.child = launch(&self.python, self.folder.path(), self.pages, addresses)?;
        self.wait()
    }

    fn signal(&mut self, signal: &str) {
        // A negative number names a process group.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill")
            .args(["-s", signal, "--", &group])
            .status();
        let _ = self.child.wait();
    }

    /// Waits until vLLM serves requests.
    fn wait(&mut self) -> Result<()> {
        let start = Instant::now();
        while !self.serves() {
            let log = self.folder.path().join("vllm.log");
            let tail = || {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().rev().take(30).collect();
                lines.into_iter().rev().collect::<Vec<_>>().join("\n")
            };
            if let Some(status) = self.child.try_wait()? {
                bail!("vLLM ended before it served ({status}):\n{}", tail());
            }
            ensure!(
                start.elapsed() < START_LIMIT,
                "vLLM does not serve:\n{}",
                tail()
            );
            sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    fn serves(&self) -> bool {
        let ask = || {
            let mut client = Client::connect(self.address)?;
            client.send(b"GET /health HTTP/1.1\r\nhost: vllm\r\n\r\n")?;
            client.response()
        };
        ask().is_ok_and(|response| response.status == 200)
    }

    /// Returns the folder of its checkpoint.
    pub(crate) fn model(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    /// Returns the number of tokens that its cache can hold, from its log.
    pub(crate) fn kv_tokens(&self) -> Result<String> {
        let log = std::fs::read_to_string(self.folder.path().join("vllm.log"))?;
        let size = log.split_once("KV cache size: ");
        let size = size.and_then(|(_, rest)| rest.split_once(" tokens"));
        Ok(size
            .context("vLLM does not say the size of its cache")?
            .0
            .to_owned())
    }

    /// Clears its prefix cache.
    pub(crate) fn reset(&self) -> Result<()> {
        let request =
            b"POST /reset_prefix_cache HTTP/1.1\r\nhost: vllm\r\ncontent-length: 0\r\n\r\n";
        let response = exchange(self.address, request)?;
        ensure!(
            response.status == 200,
            "/reset_prefix_cache answered {}",
            response.status
        );
        Ok(())
    }
}

impl Drop for Vllm {
    fn drop(&mut self) {
        self.signal("TERM");
    }
}

/// Starts vLLM on the checkpoint in `folder`, listening at these addresses: for clients, its events, and their replay.
fn launch(
    python: &Path,
    folder: &Path,
    pages: Option<u32>,
    [address, events, replay]: [SocketAddr; 3],
) -> Result<Child> {
    let kv_events = serde_json::json!({
        "enable_kv_cache_events": true,
        "publisher": "zmq",
        // With an address instead of `*`, vLLM would connect there and not listen.
        "endpoint": format!("tcp://*:{}", events.port()),
        "replay_endpoint": format!("tcp://*:{}", replay.port()),
        "topic": "kv-events",
    });
    let log = File::create(folder.join("vllm.log"))?;
    let child = Command::new(python)
        .args(["-m", "vllm.entrypoints.openai.api_server", "--model"])
        .arg(folder.join("model"))
        .args(["--served-model-name", MODEL, "--host", "127.0.0.1"])
        .args(["--port", &address.port().to_string()])
        .args([
            "--dtype",
            "bfloat16",
            "--max-model-len",
            "8192",
            "--max-num-seqs",
            "8",
        ])
        .args(["--enable-prefix-caching", "--enable-prompt-tokens-details"])
        .args(["--kv-events-config", &kv_events.to_string()])
        // Without a parser, vLLM refuses requests with tools.
        .args(["--enable-auto-tool-choice", "--tool-call-parser", "hermes"])
        .args(pages.map(|pages| format!("--num-gpu-blocks-override={pages}")))
        .env("VLLM_CPU_KVCACHE_SPACE", KV_GIB)
        // Enables `/reset_prefix_cache`.
        .env("VLLM_SERVER_DEV_MODE", "1")
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // vLLM has child processes, which end with the process group.
        .process_group(0)
        .spawn()?;
    Ok(child)
}

/// Returns three ports that are free now. vLLM takes port numbers and does not report which ones the system chose.
fn ports() -> Result<[SocketAddr; 3]> {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0"));
    let mut addresses = Vec::new();
    for listener in listeners {
        addresses.push(listener?.local_addr()?);
    }
    addresses.try_into().ok().context("three addresses")
}
