//! Publishes vLLM's KV events over ZeroMQ: a PUB socket for batches as they happen, and a ROUTER socket that repeats
//! those that a subscriber missed.
//!
//! ```text
//!   PUB     [topic, number: u64 BE, batch]                              to every subscriber
//!   ROUTER  [client, "", first number: u64 BE]                          a request; answered by
//!           [client, "", number, batch] …, [client, "", -1: i64 BE, ""]
//! ```
//!
//! Batches are numbered from 0. A missing number means that events were lost; a batch that begins with
//! `AllBlocksCleared` follows it. Subscribers that do not read lose batches and stall nobody: each has a queue of its
//! own, and repeats run beside.

use super::vllm::{Encoding, write};
use crate::gate::{Gate, Phase};
use anyhow::Context;
use axum::body::Bytes;
use foreword_engine::cache::CacheEvent;
use foreword_engine::engine::feed::{Feed, News, Position};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use zeromq::{Endpoint, PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// The configuration of a publisher.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the PUB socket; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Address of the ROUTER socket; `None`: nothing is repeated.
    pub replay: Option<SocketAddr>,
    /// The first frame of every message.
    pub topic: String,
    /// How events are written.
    pub encoding: Encoding,
}

/// Sockets that listen but do not publish yet.
pub struct Publisher {
    config: Config,
    publish: PubSocket,
    replay: Option<RouterSocket>,
    address: SocketAddr,
    replay_address: Option<SocketAddr>,
}

/// Number of batches kept for repeating, the same as vLLM's.
const KEPT_BATCHES: usize = 10_000;
const KEPT_BYTES: usize = 64 << 20;
/// Most events of the cache in one batch.
const BATCH_EVENTS: usize = 1024;
/// Time limit for repeating what one client asked for.
const REPLAY_TIME: Duration = Duration::from_secs(10);

impl Publisher {
    /// Listens on the sockets' addresses.
    ///
    /// # Errors
    /// Returns an error when an address cannot be listened on.
    pub async fn bind(config: Config) -> anyhow::Result<Self> {
        let mut publish = PubSocket::new();
        let address = bind(&mut publish, config.listen).await?;
        let (mut replay, mut replay_address) = (None, None);
        if let Some(listen) = config.replay {
            let mut socket = RouterSocket::new();
            replay_address = Some(bind(&mut socket, listen).await?);
            replay = Some(socket);
        }
        Ok(Self {
            config,
            publish,
            replay,
            address,
            replay_address,
        })
    }

    /// Returns the address of the PUB socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of the ROUTER socket.
    pub fn replay_address(&self) -> Option<SocketAddr> {
        self.replay_address
    }

    /// Publishes the events of the feed's cache, in tasks of `tasks` that end when the gate is closed.
    pub fn start(self, feed: Arc<Feed>, gate: &Arc<Gate>, tasks: &mut JoinSet<()>) {
        let kept = Arc::new(ReplayBuffer::default());
        if let Some(socket) = self.replay {
            let (gate, kept) = (Arc::clone(gate), Arc::clone(&kept));
            tasks.spawn(async move {
                tokio::select! {
                    () = gate.reached(Phase::Closed) => {}
                    () = repeat(socket, &kept) => {}
                }
            });
        }
        let gate = Arc::clone(gate);
        let stream = Stream {
            topic: self.config.topic.into(),
            encoding: self.config.encoding,
            socket: self.publish,
            kept,
            position: None,
            number: 0,
        };
        tasks.spawn(async move {
            tokio::select! {
                () = gate.reached(Phase::Closed) => {}
                () = stream.run(&feed) => {}
            }
        });
    }
}

async fn bind(socket: &mut impl Socket, listen: SocketAddr) -> anyhow::Result<SocketAddr> {
    let endpoint = socket
        .bind(&format!("tcp://{listen}"))
        .await
        .with_context(|| format!("cannot publish KV events on {listen}"))?;
    match endpoint {
        Endpoint::Tcp(_, port) => Ok(SocketAddr::new(listen.ip(), port)),
        other => anyhow::bail!("KV events are published on {other}, which is no TCP address"),
    }
}

/// The sequence of batches.
struct Stream {
    topic: Bytes,
    encoding: Encoding,
    socket: PubSocket,
    kept: Arc<ReplayBuffer>,
    /// Position up to which the feed was published.
    position: Option<Position>,
    /// Number of the next batch.
    number: u64,
}

impl Stream {
    /// Publishes for as long as it is polled.
    async fn run(mut self, feed: &Feed) {
        let mut progress = feed.watch();
        loop {
            progress.mark_unchanged();
            let news = feed.pages_since(self.position, BATCH_EVENTS);
            let is_all = news.events.len() < BATCH_EVENTS;
            if let Err(error) = self.publish(news).await {
                tracing::warn!(%error, "a batch of KV events was not published");
            }
            if is_all && progress.changed().await.is_err() {
                return;
            }
        }
    }

    async fn publish(&mut self, news: News) -> anyhow::Result<()> {
        let missed = news.reset && self.position.is_some();
        self.position = Some(Position {
            epoch: news.epoch,
            next: news.next,
        });
        let mut events = news.events;
        if missed {
            self.number += 1;
            events.insert(0, CacheEvent::Cleared);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = now.unwrap_or_default().as_secs_f64();
        let Some(batch) = write::batch(&events, seconds, self.encoding)? else {
            return Ok(());
        };
        let (number, batch) = (self.number, Bytes::from(batch));
        self.number += 1;
        self.kept.add(number, batch.clone());
        let message = message(&self.topic, [bytes(number), batch]);
        self.socket.send(message).await?;
        Ok(())
    }
}

/// The last batches, for repeating.
#[derive(Default)]
struct ReplayBuffer(Mutex<Batches>);

#[derive(Default)]
struct Batches {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl ReplayBuffer {
    fn add(&self, number: u64, batch: Bytes) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += batch.len();
        kept.batches.push_back((number, batch));
        while kept.batches.len() > KEPT_BATCHES || kept.bytes > KEPT_BYTES {
            let Some((_, oldest)) = kept.batches.pop_front() else {
                return;
            };
            kept.bytes -= oldest.len();
        }
    }

    fn since(&self, number: u64) -> Vec<(u64, Bytes)> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = kept.batches.partition_point(|(other, _)| *other < number);
        kept.batches.range(start..).cloned().collect()
    }
}

/// Answers requests for batches that were missed.
async fn repeat(mut socket: RouterSocket, kept: &ReplayBuffer) {
    loop {
        let request = match socket.recv().await {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(%error, "a request for KV events could not be read");
                // A peer that disconnected fails at once: this lets other tasks run in between.
                tokio::task::yield_now().await;
                continue;
            }
        };
        let answer = tokio::time::timeout(REPLAY_TIME, answer(&mut socket, request, kept)).await;
        match answer {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "missed KV events could not be repeated"),
            Err(_) => tracing::debug!("a client does not read the KV events that it asked for"),
        }
    }
}

async fn answer(
    socket: &mut RouterSocket,
    request: ZmqMessage,
    kept: &ReplayBuffer,
) -> anyhow::Result<()> {
    let frames = request.into_vec();
    let [client, empty, number] = &frames[..] else {
        anyhow::bail!("a request must have 3 frames, got {}", frames.len());
    };
    let number: [u8; 8] = number[..].try_into().with_context(|| {
        format!(
            "a request must name a number of 8 bytes, got {}",
            number.len()
        )
    })?;
    for (number, batch) in kept.since(u64::from_be_bytes(number)) {
        let frames = [empty.clone(), bytes(number), batch];
        socket.send(message(client, frames)).await?;
    }
    let end = Bytes::copy_from_slice(&(-1_i64).to_be_bytes());
    let frames = [empty.clone(), end, Bytes::new()];
    socket.send(message(client, frames)).await?;
    Ok(())
}

fn bytes(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

fn message<const N: usize>(first: &Bytes, others: [Bytes; N]) -> ZmqMessage {
    let mut message = ZmqMessage::from(first.clone());
    others
        .into_iter()
        .for_each(|frame| message.push_back(frame));
    message
}
