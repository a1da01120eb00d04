//! The server's two listeners, for clients and for internal use (probes, metrics, gateways), from binding to closing.

use crate::connections::{self, Book, Listening};
use crate::gate::{Gate, Phase};
use axum::Router;
use foreword_process::listen;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Bound listeners whose connections are not served yet.
pub(crate) struct Listeners {
    clients: (TcpListener, SocketAddr),
    internal: Option<(TcpListener, SocketAddr)>,
}

/// Listeners whose connections are being served.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    pub(crate) internal: Option<SocketAddr>,
    gate: Arc<Gate>,
    connections: JoinSet<()>,
}

impl Listeners {
    /// Binds the listeners; port 0 picks a free port. `whom` describes the users of the address `clients`, for the
    /// error message.
    ///
    /// # Errors
    /// Returns an error if an address cannot be listened on.
    pub(crate) async fn bind(
        clients: SocketAddr,
        whom: &str,
        internal: Option<SocketAddr>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            clients: listen(clients, whom).await?,
            internal: match internal {
                Some(address) => Some(listen(address, INTERNAL).await?),
                None => None,
            },
        })
    }

    pub(crate) fn internal_address(&self) -> Option<SocketAddr> {
        self.internal.as_ref().map(|(_, address)| *address)
    }

    /// Serves both listeners' routes until the gate's phase is [`Phase::Closed`]. Each book limits the connections of
    /// its listener.
    pub(crate) fn serve(
        self,
        gate: &Arc<Gate>,
        clients: (Router, Arc<Book>),
        internal: (Router, Arc<Book>),
    ) -> Serving {
        let (address, internal_address) = (self.clients.1, self.internal_address());
        let listening = [(Some(self.clients), clients), (self.internal, internal)];
        let listening = listening.into_iter().filter_map(|(bound, (router, book))| {
            Some(Listening {
                listener: bound?.0,
                router,
                book,
            })
        });
        Serving {
            address,
            internal: internal_address,
            connections: connections::serve_all(listening, gate),
            gate: Arc::clone(gate),
        }
    }
}

impl Serving {
    /// Stops the server: refuses new requests, waits up to `grace` for those in flight, aborts the rest, waits for
    /// `ended`, which must not need a new request, and closes the connections.
    pub(crate) async fn stop(mut self, grace: Duration, ended: impl Future<Output = ()>) {
        let gate = &self.gate;
        let deadline = Instant::now() + grace;
        gate.advance(Phase::Stopping);
        tracing::info!(inside = gate.inside(), "stopping");
        if timeout_at(deadline, gate.emptied()).await.is_err() {
            tracing::warn!(
                inside = gate.inside(),
                "grace is over: cutting requests off"
            );
        }
        gate.advance(Phase::Cut);
        gate.emptied().await;
        ended.await;
        gate.advance(Phase::Closed);
        // All answers are complete and only need to be written, but a client may not read them.
        let writing = deadline.max(Instant::now() + WRITING);
        let written = async { while self.connections.join_next().await.is_some() {} };
        if timeout_at(writing, written).await.is_err() {
            tracing::warn!("closing connections whose clients do not read");
        }
    }
}

/// Describes the users of the internal listener, for the error if its address cannot be listened on.
const INTERNAL: &str =
    "probes, metrics and the KV feed; --internal-listen gives another address, or none";

/// Minimum time for writing the last responses, even if the grace period is over.
const WRITING: Duration = Duration::from_secs(1);
