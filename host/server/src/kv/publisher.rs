//! Publishes the engine's cache events in vLLM's format over ZeroMQ: a PUB socket sends batches, a ROUTER socket
//! replays missed ones.
//!
//! ```text
//!   PUB     [topic, number: u64 BE, batch]                              to every subscriber
//!   ROUTER  [client, "", first number: u64 BE]                          a request; answered by
//!           [client, "", number, batch] …, [client, "", -1: i64 BE, ""]
//! ```
//!
//! Batches are numbered from 0. If events were lost, a number is skipped, and the next batch begins with
//! `AllBlocksCleared`.
//!
//! The last batches are stored once, for all connections. A connection has no queue: when its peer has read a batch, it
//! sends the next stored one. So a peer that does not read loses batches, as with a full queue, and delays no other.
//! Connections are bounded like HTTP's ([`connections`]): a peer that does not complete the handshake or does not read
//! is disconnected, and idle ones are closed if there are too many.

use super::vllm::{Encoding, write};
use crate::connections::{self, Book, Bounds, Busy, Connection, Counts};
use crate::gate::{Gate, Phase};
use crate::zmtp::{self, Peer, Received, Socket};
use axum::body::Bytes;
use foreword_engine::cache::CacheEvent;
use foreword_engine::engine::feed::{EventsSince, Feed, Position};
use foreword_process::listen;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The configuration of a publisher of vLLM's KV events.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the PUB socket; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Address of the ROUTER socket, which replays missed batches of cache events; `None` for no replays.
    pub replay: Option<SocketAddr>,
    /// The topic, which is the first frame of every published message.
    pub topic: String,
    /// The encoding of events.
    pub encoding: Encoding,
}

/// Bound sockets for vLLM's KV events, on which nothing is published yet.
pub struct Publisher {
    config: Config,
    publish: (TcpListener, SocketAddr),
    replay: Option<(TcpListener, SocketAddr)>,
}

/// Maximum number of batches of cache events stored for replays: vLLM's default.
const KEPT_BATCHES: usize = 10_000;
const KEPT_BYTES: usize = 64 << 20;
/// Maximum number of cache events in one batch.
const BATCH_EVENTS: usize = 1024;
/// Maximum length in bytes of a message that a peer sends: a topic, or the number of a batch of cache events to replay.
const PEER_BYTES: usize = 4096;
/// Limits on the connections of the PUB socket, and on those of the ROUTER socket.
const BOUNDS: Bounds = Bounds {
    connections: 256,
    per_address: 64,
    head_time: Duration::from_secs(10),
    idle_time: Duration::from_secs(3660),
    rate: 1024,
    window: Duration::from_secs(10),
    body_bytes: 0,
};

impl Publisher {
    /// Binds the PUB socket, on which KV events are published, and the ROUTER socket for replays if the configuration
    /// has an address for it.
    ///
    /// # Errors
    /// Returns an error if an address cannot be listened on.
    pub async fn bind(config: Config) -> anyhow::Result<Self> {
        let publish = listen(config.listen, "KV events").await?;
        let replay = match config.replay {
            Some(address) => Some(listen(address, "KV events that were missed").await?),
            None => None,
        };
        Ok(Self {
            config,
            publish,
            replay,
        })
    }

    /// Returns the address of the PUB socket, with the port that was bound.
    pub fn address(&self) -> SocketAddr {
        self.publish.1
    }

    /// Returns the address of the ROUTER socket, which replays missed batches of events, with the port that was bound.
    /// `None` if the configuration has no address for it.
    pub fn replay_address(&self) -> Option<SocketAddr> {
        self.replay.as_ref().map(|(_, address)| *address)
    }

    /// Starts tasks that publish the engine's cache events from `feed` until the gate's phase is [`Phase::Closed`], and
    /// adds them to `tasks`. `counts` counts the connections.
    pub fn start(
        self,
        feed: Arc<Feed>,
        gate: &Arc<Gate>,
        counts: &Counts,
        tasks: &mut JoinSet<()>,
    ) {
        let kept = Arc::new(ReplayBuffer::default());
        let topic: Bytes = self.config.topic.into();
        if let Some((listener, _)) = self.replay {
            let kept = Arc::clone(&kept);
            tasks.spawn(attend(
                listener,
                "kv_replay",
                gate,
                counts,
                move |stream, connection| repeat(stream, connection, Arc::clone(&kept)),
            ));
        }
        let stream = Stream {
            encoding: self.config.encoding,
            kept: Arc::clone(&kept),
            position: None,
            number: 0,
        };
        let (listener, _) = self.publish;
        tasks.spawn(attend(
            listener,
            "kv_events",
            gate,
            counts,
            move |stream, connection| publish(stream, connection, topic.clone(), Arc::clone(&kept)),
        ));
        let gate = Arc::clone(gate);
        tasks.spawn(async move {
            tokio::select! {
                () = gate.reached(Phase::Closed) => {}
                () = stream.run(&feed) => {}
            }
        });
    }
}

/// Accepts peers of one socket until the gate's phase is [`Phase::Closed`]. `serve` handles one peer until its
/// connection fails.
fn attend<F>(
    listener: TcpListener,
    name: &'static str,
    gate: &Arc<Gate>,
    counts: &Counts,
    serve: impl Fn(connections::WatchedStream, Connection) -> F + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static
where
    F: Future<Output = Result<Infallible, zmtp::Error>> + Send + 'static,
{
    let book = Book::new(name, BOUNDS, counts.clone());
    let work = {
        let gate = Arc::clone(gate);
        move |stream, connection| {
            let (gate, served) = (Arc::clone(&gate), serve(stream, connection));
            async move {
                tokio::select! {
                    () = gate.reached(Phase::Closed) => {}
                    Err(error) = served => {
                        tracing::debug!(%error, listener = name, "a peer's connection has ended");
                    }
                }
            }
        }
    };
    connections::accept_each(listener, book, Arc::clone(gate), work)
}

/// Turns the events of the engine's feed into numbered batches.
struct Stream {
    encoding: Encoding,
    kept: Arc<ReplayBuffer>,
    /// Position in the engine's feed up to which its events are published; `None` before the first batch of events.
    position: Option<Position>,
    /// Number that the next batch will get.
    number: u64,
}

impl Stream {
    /// Publishes the events of the engine's feed until the engine ends.
    async fn run(mut self, feed: &Feed) {
        let mut progress = feed.watch();
        loop {
            progress.mark_unchanged();
            let news = feed.pages_since(self.position, BATCH_EVENTS);
            let is_all = news.events.len() < BATCH_EVENTS;
            if let Err(error) = self.publish(news) {
                tracing::warn!(%error, "a batch of KV events was not published");
            }
            if is_all && progress.changed().await.is_err() {
                return;
            }
        }
    }

    fn publish(&mut self, news: EventsSince) -> anyhow::Result<()> {
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
        self.kept.add(self.number, batch.into());
        self.number += 1;
        Ok(())
    }
}

/// The last published batches of cache events, with the numbers under which they can be replayed.
struct ReplayBuffer {
    batches: Mutex<Batches>,
    /// Number that the next batch of cache events will get. Changes wake the connections that wait for a batch.
    end: watch::Sender<u64>,
}

#[derive(Default)]
struct Batches {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Default for ReplayBuffer {
    fn default() -> Self {
        Self {
            batches: Mutex::default(),
            end: watch::Sender::new(0),
        }
    }
}

impl ReplayBuffer {
    fn add(&self, number: u64, batch: Bytes) {
        {
            let mut kept = self.batches.lock();
            kept.bytes += batch.len();
            kept.batches.push_back((number, batch));
            while kept.batches.len() > KEPT_BATCHES || kept.bytes > KEPT_BYTES {
                let Some((_, oldest)) = kept.batches.pop_front() else {
                    break;
                };
                kept.bytes -= oldest.len();
            }
        }
        self.end.send_replace(number + 1);
    }

    /// Returns the first stored batch of cache events whose number is at least `from`, with its number; `None` if there
    /// is none yet.
    fn first(&self, from: u64) -> Option<(u64, Bytes)> {
        let kept = self.batches.lock();
        let at = kept.batches.partition_point(|(number, _)| *number < from);
        kept.batches.get(at).cloned()
    }

    /// Returns the first stored batch of cache events whose number is at least `from`, with its number, after waiting
    /// for it if necessary. `progress` watches [`ReplayBuffer::end`].
    async fn next(&self, from: u64, progress: &mut watch::Receiver<u64>) -> (u64, Bytes) {
        loop {
            progress.mark_unchanged();
            if let Some(batch) = self.first(from) {
                return batch;
            }
            // The sender is `self`, which outlives this wait.
            let _ = progress.changed().await;
        }
    }
}

/// Sends a subscriber each new batch of cache events while it has a subscription to `topic`. Returns when the
/// connection fails.
async fn publish<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    connection: Connection,
    topic: Bytes,
    kept: Arc<ReplayBuffer>,
) -> Result<Infallible, zmtp::Error> {
    let mut peer = Peer::meet(stream, Socket::Pub, PEER_BYTES).await?;
    let mut progress = kept.end.subscribe();
    let mut next = *progress.borrow();
    let mut subscriptions = Subscriptions::new(&topic);
    let mut busy: Option<Busy> = Some(connection.busy());
    loop {
        if !subscriptions.any() {
            // The connection counts as idle and may be closed in favour of others.
            busy = None;
        }
        tokio::select! {
            received = peer.receive() => {
                busy.get_or_insert_with(|| connection.busy());
                match received? {
                    Received::Subscribe(prefix) => subscriptions.add(&prefix),
                    Received::Cancel(prefix) => subscriptions.remove(&prefix),
                    Received::Message(_) => {
                        return Err(zmtp::Error::Protocol("a subscriber sends subscriptions alone"));
                    }
                }
            }
            (number, batch) = kept.next(next, &mut progress) => {
                next = number + 1;
                if subscriptions.any() {
                    peer.send(&[&topic, &number.to_be_bytes(), &batch]).await?;
                }
            }
        }
    }
}

/// A subscriber's subscriptions to prefixes of one topic. A prefix that was subscribed to twice must be cancelled
/// twice.
struct Subscriptions<'t> {
    topic: &'t [u8],
    /// Number of subscriptions for each length of the prefix; the index is the length.
    counts: Vec<u32>,
}

impl<'t> Subscriptions<'t> {
    fn new(topic: &'t [u8]) -> Self {
        Self {
            topic,
            counts: vec![0; topic.len() + 1],
        }
    }

    fn any(&self) -> bool {
        self.counts.iter().any(|count| *count > 0)
    }

    fn add(&mut self, prefix: &[u8]) {
        if let Some(count) = self.count(prefix) {
            *count = count.saturating_add(1);
        }
    }

    fn remove(&mut self, prefix: &[u8]) {
        if let Some(count) = self.count(prefix) {
            *count = count.saturating_sub(1);
        }
    }

    fn count(&mut self, prefix: &[u8]) -> Option<&mut u32> {
        let concerns = self.topic.starts_with(prefix);
        self.counts.get_mut(prefix.len()).filter(|_| concerns)
    }
}

/// Answers the replay requests of a peer until its connection fails.
async fn repeat<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    connection: Connection,
    kept: Arc<ReplayBuffer>,
) -> Result<Infallible, zmtp::Error> {
    let mut peer = Peer::meet(stream, Socket::Router, PEER_BYTES).await?;
    drop(connection.busy());
    loop {
        let Received::Message(request) = peer.receive().await? else {
            continue;
        };
        let _busy = connection.busy();
        let [empty, number] = &request[..] else {
            return Err(zmtp::Error::Protocol("a request must have 2 frames"));
        };
        let number: Result<[u8; 8], _> = number[..].try_into();
        let number = number.map_err(|_| zmtp::Error::Protocol("a batch's number has 8 bytes"))?;
        let mut next = u64::from_be_bytes(number);
        // Batches added meanwhile are published, not replayed.
        let end = *kept.end.borrow();
        while let Some((number, batch)) = kept.first(next).filter(|(number, _)| *number < end) {
            peer.send(&[empty, &number.to_be_bytes(), &batch]).await?;
            next = number + 1;
        }
        peer.send(&[empty, &(-1_i64).to_be_bytes(), b""]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    /// Opens a PUB socket with this topic and a ROUTER socket, for these batches.
    async fn sockets(topic: &'static str, kept: &Arc<ReplayBuffer>) -> [SocketAddr; 2] {
        let (gate, counts) = (Gate::new(1), Counts::default());
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let (events, events_address) = listen(anywhere, "a test").await.unwrap();
        let (replay, replay_address) = listen(anywhere, "a test").await.unwrap();
        let published = Arc::clone(kept);
        tokio::spawn(attend(
            events,
            "kv_events",
            &gate,
            &counts,
            move |stream, connection| {
                publish(stream, connection, topic.into(), Arc::clone(&published))
            },
        ));
        let repeated = Arc::clone(kept);
        tokio::spawn(attend(
            replay,
            "kv_replay",
            &gate,
            &counts,
            move |stream, connection| repeat(stream, connection, Arc::clone(&repeated)),
        ));
        [events_address, replay_address]
    }

    async fn peer(address: SocketAddr, socket: Socket) -> Peer<TcpStream> {
        let stream = TcpStream::connect(address).await.unwrap();
        Peer::meet(stream, socket, 1 << 20).await.unwrap()
    }

    /// A subscriber that receives batches from now on.
    async fn subscriber(address: SocketAddr, kept: &ReplayBuffer) -> Peer<TcpStream> {
        let mut subscriber = peer(address, Socket::Sub).await;
        subscriber.subscribe(b"k").await.unwrap();
        loop {
            let number = *kept.end.borrow();
            kept.add(number, Bytes::new());
            tokio::select! {
                biased;
                heard = subscriber.receive() => {
                    heard.unwrap();
                    return subscriber;
                }
                () = tokio::task::yield_now() => {}
            }
        }
    }

    /// The number of the next batch that it receives.
    async fn next(peer: &mut Peer<TcpStream>) -> u64 {
        let Received::Message(frames) = peer.receive().await.unwrap() else {
            panic!("a message");
        };
        u64::from_be_bytes(frames[1][..].try_into().unwrap())
    }

    #[tokio::test]
    async fn a_subscriber_that_does_not_read_loses_batches_and_holds_nobody_up() {
        let kept = Arc::new(ReplayBuffer::default());
        let [address, _] = sockets("kv", &kept).await;
        let mut slow = subscriber(address, &kept).await;
        let mut quick = subscriber(address, &kept).await;
        let first = *kept.end.borrow();
        // Twice as much as is stored, which exceeds any buffer of the system.
        let batch = Bytes::from(vec![7; 64 << 10]);
        let last = first + 2 * (KEPT_BYTES / batch.len()) as u64;
        for number in first..=last {
            kept.add(number, batch.clone());
            while next(&mut quick).await < number {}
        }
        assert!(kept.batches.lock().bytes <= KEPT_BYTES);
        let mut heard = Vec::new();
        while heard.last() != Some(&last) {
            heard.push(next(&mut slow).await);
        }
        assert!(heard.is_sorted_by(|a, b| a < b), "each once, in order");
        heard.retain(|number| *number >= first);
        assert!((heard.len() as u64) < last - first, "some were lost");
    }

    #[tokio::test]
    async fn hostile_and_silent_peers_cost_no_other_its_place() {
        let kept = Arc::new(ReplayBuffer::default());
        let addresses = sockets("kv", &kept).await;
        let mut greeting = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL".to_vec();
        greeting.resize(64, 0);
        greeting.extend(b"\x02\x10\0\0\0\0\0\0\0");
        assert_eq!(greeting.len(), 73);
        for address in addresses {
            let mut hostile = TcpStream::connect(address).await.unwrap();
            hostile.write_all(&greeting).await.unwrap();
            let mut rest = Vec::new();
            hostile.read_to_end(&mut rest).await.unwrap();
            assert!(
                rest.starts_with(&greeting[..10]),
                "it was answered, and cut off"
            );
        }
        let early = subscriber(addresses[0], &kept).await;
        let mut silent = Vec::new();
        for address in addresses {
            for _ in 0..2 * BOUNDS.connections {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
        }
        let _another = subscriber(addresses[0], &kept).await;
        drop(early);
        let mut asking = peer(addresses[1], Socket::Dealer).await;
        kept.add(u64::MAX - 2, Bytes::new());
        asking.send(&[b"", &7_u64.to_be_bytes()]).await.unwrap();
        while next(&mut asking).await != u64::MAX {}
    }

    #[tokio::test]
    async fn missed_batches_are_repeated_from_the_number_that_was_asked_for() {
        let kept = Arc::new(ReplayBuffer::default());
        let [_, address] = sockets("", &kept).await;
        for number in [0, 1, 4, 5] {
            kept.add(number, Bytes::from(vec![number as u8]));
        }
        let mut asking = peer(address, Socket::Dealer).await;
        for (from, expected) in [(1, &[1, 4, 5][..]), (3, &[4, 5]), (6, &[]), (u64::MAX, &[])] {
            asking.send(&[b"", &u64::to_be_bytes(from)]).await.unwrap();
            for number in expected {
                assert_eq!(next(&mut asking).await, *number);
            }
            assert_eq!(next(&mut asking).await, u64::MAX);
        }
        for wrong in [&[b"x".as_slice()][..], &[b"", b"seven"]] {
            let mut asking = peer(address, Socket::Dealer).await;
            asking.send(wrong).await.unwrap();
            assert!(asking.receive().await.is_err());
        }
    }

    #[test]
    fn what_a_peer_is_subscribed_to_is_counted_by_the_beginnings_of_the_topic() {
        let mut subscriptions = Subscriptions::new(b"kv");
        for other in [&b"k0"[..], b"kv-events", b"x"] {
            subscriptions.add(other);
            assert!(!subscriptions.any());
        }
        subscriptions.add(b"");
        subscriptions.add(b"k");
        subscriptions.add(b"k");
        for cancelled in [&b""[..], b"", b"k", b"v"] {
            subscriptions.remove(cancelled);
            assert!(subscriptions.any());
        }
        subscriptions.remove(b"k");
        assert!(!subscriptions.any());
    }
}
