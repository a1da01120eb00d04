//! The source of a pool's endpoints: a watched file, or a DNS name that is resolved periodically.
//!
//! ```yaml
//! endpoints:
//! - 10.0.0.1:8000
//! - address: 10.0.0.2:8000
//!   metrics: 10.0.0.2:9400        # where the metrics are, if not at the address
//! - { name: vllm-2, address: 10.0.0.3, port: "8000" }   # as llm-d-router's file-discovery has it
//! ```
//!
//! A DNS name should be that of a headless Service, whose records are the ready pods of its selector: those of an
//! `InferencePool` with the same selector. So the Kubernetes API and permissions for it are not needed.
//!
//! A client of that API (`kube`) would add 42 crates, and save some seconds of delay.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;

use super::{Endpoint, MAX_ENDPOINTS};

/// The source of a pool's endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file in JSON or YAML.
    File(PathBuf),
    /// The addresses to which a DNS name resolves, each with every port of the name.
    Dns(Name),
}

/// A DNS name, and the ports of the endpoints at its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    host: String,
    /// One to [`MAX_PORTS`] ports.
    ports: Vec<u16>,
}

impl FromStr for Name {
    type Err = String;

    /// Parses `HOST:PORT[,PORT…]`.
    fn from_str(text: &str) -> Result<Self, String> {
        let limit = || {
            format!(
                "it must be a name and 1 to {MAX_PORTS} ports, as vllm.llm.svc.cluster.local:8000 or vllm:8000,8001 is"
            )
        };
        let (host, ports) = text.rsplit_once(':').ok_or_else(limit)?;
        let ports: Result<Vec<u16>, _> = ports.split(',').map(str::parse).collect();
        let ports = ports.map_err(|_| limit())?;
        let is_sound = |host: &str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !host.is_empty() && host.len() <= 253 && host.bytes().all(is_part)
        };
        if !is_sound(host) || ports.len() > MAX_PORTS || ports.contains(&0) {
            return Err(limit());
        }
        Ok(Self {
            host: host.to_owned(),
            ports,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Dns(name) => write!(f, "{}", name.host),
        }
    }
}

/// The content of a source before parsing, so that unchanged content is noticed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    File(Vec<u8>),
    /// The addresses to which a name resolved, in order.
    Addresses(BTreeSet<SocketAddr>),
}

impl Source {
    /// Returns the interval between readings of the source.
    pub(crate) fn interval(&self) -> Duration {
        match self {
            Self::File(_) => Duration::from_secs(1),
            // Kubernetes' DNS caches records for this long.
            Self::Dns(_) => Duration::from_secs(5),
        }
    }

    /// Reads the file, or resolves the name.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is too long, or if the name does not resolve in time.
    pub(crate) async fn look(&self) -> anyhow::Result<Listing> {
        match self {
            Self::File(path) => Ok(Listing::File(file(path)?)),
            Self::Dns(Name { host, ports }) => {
                let found = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((&**host, 0)));
                let found = found
                    .await
                    .with_context(|| format!("{host} was not resolved within {LOOKUP:?}"))?
                    .with_context(|| format!("cannot resolve {host}"))?;
                let hosts: BTreeSet<IpAddr> = found.map(|address| address.ip()).collect();
                let at = |host| ports.iter().map(move |port| SocketAddr::new(host, *port));
                let all = hosts.into_iter().flat_map(at);
                Ok(Listing::Addresses(all.collect()))
            }
        }
    }
}

impl Listing {
    /// Parses the endpoints. A name's addresses beyond [`MAX_ENDPOINTS`] are left out, with a warning.
    ///
    /// # Errors
    /// Fails if the file is not a valid list of endpoints.
    pub(crate) fn endpoints(&self) -> anyhow::Result<Vec<Endpoint>> {
        match self {
            Self::File(text) => parse(text),
            Self::Addresses(all) => {
                if all.len() > MAX_ENDPOINTS {
                    let found = all.len();
                    tracing::warn!(
                        found,
                        "only {MAX_ENDPOINTS} endpoints are chosen from: use several pools"
                    );
                }
                let all = all.iter().copied().take(MAX_ENDPOINTS);
                Ok(all.map(Endpoint::at).collect())
            }
        }
    }
}

/// Reads a regular file up to the size limit. A pipe is refused, since reading it could block.
fn file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let context = || format!("cannot read {}", path.display());
    let kind = std::fs::metadata(path).with_context(context)?;
    if !kind.is_file() {
        bail!("{} is no file", path.display());
    }
    let mut text = Vec::new();
    let mut file = File::open(path)
        .with_context(context)?
        .take(MAX_FILE_BYTES + 1);
    file.read_to_end(&mut text).with_context(context)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        bail!(
            "{} has more than {MAX_FILE_BYTES} bytes, which is the limit",
            path.display()
        );
    }
    Ok(text)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawList {
    endpoints: Vec<RawEndpoint>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawEndpoint {
    Address(String),
    Fields(RawFields),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFields {
    address: String,
    port: Option<RawPort>,
    metrics: Option<String>,
    // A label for human readers.
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "namespace")]
    _namespace: Option<String>,
    #[serde(rename = "labels")]
    _labels: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawPort {
    Number(u16),
    Text(String),
}

/// Parses a list of endpoints in JSON or YAML.
fn parse(text: &[u8]) -> anyhow::Result<Vec<Endpoint>> {
    let text = str::from_utf8(text).context("it is not UTF-8")?;
    let list: RawList = serde_saphyr::from_str(text).map_err(|error| {
        // Only the first line, since the others quote the file.
        let error = error.to_string();
        let line = error.lines().next().unwrap_or_default();
        anyhow::anyhow!("{}", line.trim_start_matches("error: ").to_owned())
    })?;
    if list.endpoints.len() > MAX_ENDPOINTS {
        bail!(
            "it lists {} endpoints; the limit is {MAX_ENDPOINTS}",
            list.endpoints.len()
        );
    }
    let mut endpoints: Vec<Endpoint> = Vec::with_capacity(list.endpoints.len());
    for raw in list.endpoints {
        let endpoint = endpoint(raw)?;
        let mut known = endpoints.iter();
        if known.any(|known| known.address == endpoint.address) {
            bail!("{} is listed twice", endpoint.address);
        }
        endpoints.push(endpoint);
    }
    Ok(endpoints)
}

fn endpoint(raw: RawEndpoint) -> anyhow::Result<Endpoint> {
    let (text, port, metrics) = match raw {
        RawEndpoint::Address(address) => (address, None, None),
        RawEndpoint::Fields(fields) => (fields.address, fields.port, fields.metrics),
    };
    let parsed = match port {
        None => text.parse().ok(),
        Some(port) => {
            let port = match port {
                RawPort::Number(port) => Some(port),
                RawPort::Text(port) => port.parse().ok(),
            };
            let host = text.parse::<IpAddr>().ok();
            host.zip(port).map(SocketAddr::from)
        }
    };
    let Some(address) = parsed.filter(|address: &SocketAddr| address.port() != 0) else {
        bail!(
            "{text:?} is not an IP address with a port, as \"10.0.0.1:8000\" is, nor one beside a `port`"
        );
    };
    let metrics = match metrics {
        None => address,
        Some(text) => text
            .parse()
            .with_context(|| format!("metrics: {text:?} is not an IP address with a port"))?,
    };
    Ok(Endpoint { address, metrics })
}

/// Maximum number of ports of a name, as in an `InferencePool`.
const MAX_PORTS: usize = 8;
const MAX_FILE_BYTES: u64 = 1 << 20;
const LOOKUP: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, String)>, String> {
        let endpoints = parse(text.as_bytes()).map_err(|error| format!("{error:#}"))?;
        let told = endpoints.iter();
        let told = told.map(|it| (it.address.to_string(), it.metrics.to_string()));
        Ok(told.collect())
    }

    #[test]
    fn endpoints_are_read_in_every_spelling() {
        let yaml = "endpoints:\n- 10.0.0.1:8000\n- address: '[::1]:8000'\n  metrics: 10.0.0.2:9400\n\
                    - {name: vllm-2, namespace: llm, address: 10.0.0.3, port: \"8000\", labels: {model: m}}\n\
                    - {address: 10.0.0.4, port: 8001}\n";
        let expected = [
            ("10.0.0.1:8000", "10.0.0.1:8000"),
            ("[::1]:8000", "10.0.0.2:9400"),
            ("10.0.0.3:8000", "10.0.0.3:8000"),
            ("10.0.0.4:8001", "10.0.0.4:8001"),
        ]
        .map(|(address, metrics)| (address.to_owned(), metrics.to_owned()));
        assert_eq!(read(yaml).unwrap(), expected);
        let json = r#"{"endpoints": ["10.0.0.1:8000"]}"#;
        assert_eq!(read(json).unwrap(), expected[..1]);
        assert_eq!(read("endpoints: []\n").unwrap(), []);
    }

    #[test]
    fn what_is_wrong_with_a_list_is_named() {
        let many: Vec<String> = (0..257)
            .map(|it| format!("10.0.{}.1:{}", it % 2, 80 + it))
            .collect();
        let many = format!("endpoints: {many:?}");
        for (text, words) in [
            ("", "unexpected end"),
            ("endpoint: []", "endpoint"),
            ("[]", ""),
            (
                "endpoints: [10.0.0.1]",
                "\"10.0.0.1\" is not an IP address with a port",
            ),
            ("endpoints: [\"host:80\"]", "\"host:80\" is not"),
            ("endpoints: [\"10.0.0.1:0\"]", "\"10.0.0.1:0\" is not"),
            (
                "endpoints: [{address: 10.0.0.1, port: http}]",
                "\"10.0.0.1\" is not",
            ),
            (
                "endpoints: [{address: \"10.0.0.1:80\", port: 80}]",
                "\"10.0.0.1:80\" is not",
            ),
            (
                "endpoints: [\"10.0.0.1:80\", \"10.0.0.1:80\"]",
                "10.0.0.1:80 is listed twice",
            ),
            (
                "endpoints: [{address: \"10.0.0.1:80\", metrics: x}]",
                "metrics: \"x\" is not",
            ),
            (&many, "it lists 257 endpoints; the limit is 256"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(parse(b"endpoints: [\xff]").is_err());
    }

    #[test]
    fn a_name_has_ports() {
        let name: Name = "vllm.llm.svc:8000,8001".parse().unwrap();
        assert_eq!(
            (&*name.host, &*name.ports),
            ("vllm.llm.svc", &[8000, 8001][..])
        );
        for wrong in [
            "vllm",
            "vllm:",
            ":80",
            "vllm:0",
            "vllm:80,",
            "a b:80",
            "vllm:1,2,3,4,5,6,7,8,9",
        ] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_name_is_resolved_to_every_port_and_an_unknown_one_is_an_error() {
        let source = Source::Dns("localhost:8000,8001".parse().unwrap());
        let endpoints = source.look().await.unwrap().endpoints().unwrap();
        for port in [8000, 8001] {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            assert!(endpoints.contains(&Endpoint::at(address)), "{endpoints:?}");
        }
        let unknown = Source::Dns("foreword.invalid:8000".parse().unwrap());
        let error = unknown.look().await.unwrap_err();
        assert!(
            format!("{error:#}").contains("foreword.invalid"),
            "{error:#}"
        );
    }

    #[tokio::test]
    async fn a_file_over_the_bound_and_what_is_no_file_are_not_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MAX_FILE_BYTES + 1).unwrap();
        let source = Source::File(file.path().to_owned());
        let error = source.look().await.unwrap_err().to_string();
        assert!(error.contains("has more than 1048576 bytes"), "{error}");
        let folder = Source::File(std::env::temp_dir());
        let error = folder.look().await.unwrap_err().to_string();
        assert!(error.ends_with("is no file"), "{error}");
    }
}
