//! The server process: listeners, probes, and draining.
//!
//! ```text
//!   --listen           gRPC: the external-processing service, and the health service      TCP, TLS or a Unix socket
//!   --internal-listen  HTTP: /metrics, /live, /ready                                      for operators alone
//!
//!   SIGTERM ─▶ not ready any more, GOAWAY to all gateways ─▶ streams end, or the grace period does
//! ```

use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::SERVICE_NAME;
use foreword_process::connections::{self, Book, Bounds, Listening, NeverClosing};
use foreword_process::metrics::OPENMETRICS;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server as GrpcServer, ServerTlsConfig};
use tonic_health::ServingStatus;

use crate::pool::Pool;
use crate::processor::Processor;
use crate::service::Service;

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A TCP address; port 0 picks a free port.
    Tcp(SocketAddr),
    /// A Unix socket, for gateways on the same machine.
    Unix(PathBuf),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Certificates of a TCP listener, in PEM.
pub struct Tls {
    /// The server's certificate chain, its own certificate first.
    pub certificate: Vec<u8>,
    /// The private key of the server's certificate.
    pub key: Vec<u8>,
    /// The authority that must have issued the gateways' certificates; `None` if gateways need none.
    pub client_authority: Option<Vec<u8>>,
}

/// The configuration of a server process.
pub struct Options {
    /// Address for the gateways' connections.
    pub listen: Place,
    /// Certificates of a TCP listener; `None` for unencrypted connections.
    pub tls: Option<Tls>,
    /// Address for probes and metrics; `None` for no internal listener.
    pub internal: Option<SocketAddr>,
    /// Time that open streams get to end after a stop signal.
    pub grace: Duration,
}

/// A server process whose listeners are bound.
pub struct Server {
    processor: Arc<Processor>,
    incoming: Incoming,
    place: Place,
    /// The file of the Unix socket that was bound ([`file_of`]); `None` for a TCP address.
    socket: Option<(u64, u64)>,
    tls: Option<Tls>,
    internal: Option<(TcpListener, SocketAddr)>,
    grace: Duration,
}

enum Incoming {
    Tcp(TcpIncoming),
    Unix(UnixListenerStream),
}

impl Server {
    /// Binds the listeners. Connections are accepted only while [`Server::serve`] runs.
    ///
    /// # Errors
    /// Fails if an address cannot be bound, or if a Unix socket is in use or has certificates.
    pub async fn bind(processor: Arc<Processor>, options: Options) -> anyhow::Result<Self> {
        let listening = || format!("cannot listen on {}", options.listen);
        let (incoming, place) = match &options.listen {
            Place::Tcp(address) => {
                let listener = TcpListener::bind(address).await.with_context(listening)?;
                let address = listener.local_addr()?;
                if options.tls.is_none() && !address.ip().is_loopback() {
                    tracing::warn!(%address, "prompts cross the network unencrypted: give --tls-certificate and --tls-key");
                }
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                (Incoming::Tcp(incoming), Place::Tcp(address))
            }
            Place::Unix(path) => {
                if options.tls.is_some() {
                    bail!("a Unix socket has no TLS");
                }
                // A killed process leaves its socket behind, which is replaced. A socket that still accepts connections
                // is not, nor is another kind of file.
                if tokio::net::UnixStream::connect(path).await.is_ok() {
                    bail!("{} is in use", path.display());
                }
                if std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
                    let _ = std::fs::remove_file(path);
                }
                let listener = UnixListener::bind(path).with_context(listening)?;
                let incoming = Incoming::Unix(UnixListenerStream::new(listener));
                (incoming, options.listen.clone())
            }
        };
        let internal = match options.internal {
            Some(address) => {
                let listening = || format!("cannot listen on {address}");
                let listener = TcpListener::bind(address).await.with_context(listening)?;
                let address = listener.local_addr()?;
                Some((listener, address))
            }
            None => None,
        };
        let socket = match &place {
            Place::Unix(path) => file_of(path),
            Place::Tcp(_) => None,
        };
        Ok(Self {
            processor,
            incoming,
            socket,
            place,
            tls: options.tls,
            internal,
            grace: options.grace,
        })
    }

    /// Returns the address for gateways, with its real port.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the address for probes and metrics, with its real port; `None` without an internal listener.
    pub fn internal(&self) -> Option<SocketAddr> {
        self.internal.as_ref().map(|(_, address)| *address)
    }

    /// Serves until `stop` completes, then until all streams have ended or the grace period is over. Returns whether
    /// all streams ended by then.
    ///
    /// # Errors
    /// Fails if a certificate is invalid or a listener fails.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> anyhow::Result<bool> {
        let is_ready = Arc::new(AtomicBool::new(false));
        let (health, health_service) = tonic_health::server::health_reporter();
        (health.set_service_status("liveness", ServingStatus::Serving)).await;
        for name in READINESS_NAMES {
            (health.set_service_status(name, ServingStatus::NotServing)).await;
        }
        let following = tokio::spawn(Arc::clone(&self.processor).follow_endpoints());
        let scraping = tokio::spawn(Arc::clone(&self.processor).scrape());
        let known = self.processor.pool.as_ref().map(Pool::is_known);
        let (health_then, ready_then) = (health.clone(), Arc::clone(&is_ready));
        let becomes_ready = async move {
            // An endpoint picker is ready once its endpoints are known.
            if let Some(mut known) = known
                && known.wait_for(|known| *known).await.is_err()
            {
                return;
            }
            ready_then.store(true, Ordering::Relaxed);
            for name in READINESS_NAMES {
                (health_then.set_service_status(name, ServingStatus::Serving)).await;
            }
        };
        let getting_ready = if self.processor.pool.is_some() {
            Some(tokio::spawn(becomes_ready))
        } else {
            becomes_ready.await;
            None
        };
        let bounds = self.processor.bounds;
        let mut server = GrpcServer::builder()
            .max_concurrent_streams(u32::try_from(bounds.streams).ok())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keepalive_interval(Some(KEEPALIVE))
            // Gateways reset streams when clients disconnect, possibly many at once.
            .http2_max_pending_accept_reset_streams(Some(bounds.streams));
        if let Some(tls) = self.tls {
            let identity = Identity::from_pem(tls.certificate, tls.key);
            let mut config = ServerTlsConfig::new().identity(identity).timeout(HANDSHAKE);
            if let Some(authority) = tls.client_authority {
                config = config.client_ca_root(Certificate::from_pem(authority));
            }
            server = server.tls_config(config).context("TLS")?;
        }
        let router = server
            .add_service(health_service)
            .add_service(Service::over(Arc::clone(&self.processor)));
        let (drain, draining) = oneshot::channel::<()>();
        let draining = async move {
            // An error means that the sender was dropped, which must also start the drain.
            let _ = draining.await;
        };
        let mut serving = tokio::spawn(async move {
            match self.incoming {
                Incoming::Tcp(tcp) => router.serve_with_incoming_shutdown(tcp, draining).await,
                Incoming::Unix(unix) => router.serve_with_incoming_shutdown(unix, draining).await,
            }
        });
        let ticking = tokio::spawn(Arc::clone(&self.processor).tick());
        let internal = self.internal.map(|(listener, _)| {
            let router = internal(Arc::clone(&self.processor), Arc::clone(&is_ready));
            let counts = self.processor.metrics.connections.clone();
            let book = Book::new("internal", INTERNAL_BOUNDS, counts);
            let listening = Listening {
                listener,
                router,
                book,
            };
            tokio::spawn(connections::serve(listening, Arc::new(NeverClosing)))
        });
        tokio::select! {
            () = stop => {}
            ended = &mut serving => {
                ended?.context("the listener failed")?;
                bail!("the listener ended");
            }
        }
        if let Some(getting_ready) = getting_ready {
            getting_ready.abort();
            let _ = getting_ready.await;
        }
        is_ready.store(false, Ordering::Relaxed);
        for name in READINESS_NAMES.into_iter().chain(["liveness"]) {
            (health.set_service_status(name, ServingStatus::NotServing)).await;
        }
        if let Place::Unix(path) = &self.place
            && file_of(path) == self.socket
        {
            // Before the listener closes: then another process may listen there.
            let _ = std::fs::remove_file(path);
        }
        let _ = drain.send(());
        let has_drained = tokio::time::timeout(self.grace, &mut serving).await.is_ok();
        serving.abort();
        for task in [ticking, following, scraping] {
            task.abort();
        }
        if let Some(internal) = internal {
            internal.abort();
        }
        Ok(has_drained)
    }
}

/// Returns device and inode of the file at `path`: a file that replaces it has others. `None` if there is no file.
fn file_of(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Returns the routes for probes and scrapers.
fn internal(processor: Arc<Processor>, is_ready: Arc<AtomicBool>) -> Router {
    let metrics = move || async move { (OPENMETRICS, processor.metrics.text()) };
    let ready = move || async move {
        match is_ready.load(Ordering::Relaxed) {
            true => (StatusCode::OK, "ready\n"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        }
    };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/live", get(async || "live\n"))
        .route("/ready", get(ready))
}

/// The names in gRPC's health service that follow readiness: the whole server, the service, and the name that the
/// Gateway API's inference extension uses for endpoint pickers. `liveness` is answered too.
const READINESS_NAMES: [&str; 3] = ["", SERVICE_NAME, "readiness"];
/// Limits of the internal listener's connections, for probes and scrapers, independent of the public listener's.
const INTERNAL_BOUNDS: Bounds = Bounds {
    connections: 64,
    per_address: 0,
    head_time: Duration::from_secs(10),
    idle_time: Duration::from_secs(300),
    rate: 1024,
    window: Duration::from_secs(10),
    body_bytes: 0,
};
/// Time limit of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Flow-control window of a stream, in bytes, large enough for a typical body.
const STREAM_WINDOW: u32 = 1 << 20;
/// Flow-control window of a connection, in bytes. A gateway's worker has one connection for all its streams.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Interval of keepalive pings on idle connections.
const KEEPALIVE: Duration = Duration::from_secs(30);
