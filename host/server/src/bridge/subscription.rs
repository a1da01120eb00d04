//! Follows an engine's cache events over ZeroMQ: connects, requests replays of missed batches, and reconnects without
//! end.
//!
//! ```text
//!   connect ─▶ subscribe ─▶ catch up ─▶ batch after batch ─▶ connection lost ─▶ wait, longer each time ─▶ connect
//!                              ▲             │ a gap, or silence
//!                              └─────────────┘
//! ```
//!
//! With a replay socket, catching up requests the last received batch and all later ones. If that batch has changed or
//! is no longer available, what is known of the engine's cache is discarded and all available batches are requested. A
//! lost batch is noticed only with the next one, and a failed machine sends nothing, so catching up is repeated while
//! no events arrive.
//!
//! Without a replay socket, what is known of the engine's cache is discarded at each gap and each new connection.

use super::metrics::{Metrics, ResetCause};
use super::residency::Residency;
use super::sequence::{BatchKind, BatchStamp, Sequence};
use crate::connections::keep_alive;
use crate::kv::vllm::read;
use crate::zmtp::{Peer, Received, Socket};
use anyhow::{Context, bail};
use axum::body::Bytes;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// The addresses of the engine's event sockets.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the engine's PUB socket, `tcp://HOST:PORT`.
    pub events: String,
    /// Address of the engine's ROUTER socket for replays; `None` if it has none.
    pub replay: Option<String>,
    /// Prefix of the topics of events to subscribe to; empty for all.
    pub topic: String,
}

/// The subscription to one engine's cache events.
pub(super) struct Subscription {
    config: Config,
    residency: Arc<Residency>,
    metrics: Arc<Metrics>,
    sequence: Sequence,
}

/// The result of a request to replay batches of events.
enum ReplayResult {
    /// All available batches of cache events were received.
    All,
    /// Some new batches of cache events were received, but others are missing, because the engine sends faster than
    /// they are read (vLLM, from 1,000 batches on). Another request gets the next ones.
    Some,
    /// The last received batch of cache events has changed or is no longer available: what is known of the engine's
    /// cache is no longer true.
    Another,
}

/// Time limit for connecting to a socket of the engine, and for each batch of cache events of a replay.
const ANSWER: Duration = Duration::from_secs(10);
/// Time limit for catching up: requesting and receiving all missed batches of events.
const CATCH_UP: Duration = Duration::from_secs(300);
/// Maximum number of the engine's restarts that may be noticed while the missed batches of events are requested and
/// received; with one more, that fails.
const MAX_RESTARTS: u32 = 3;
/// Time without events after which a replay is requested, to find out whether batches of events were missed.
const SILENCE: Duration = Duration::from_secs(5);
/// The first and the longest pause before connecting to the engine again. The pause doubles with each failure.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// Maximum length in bytes of a message of the engine: room for a batch with a million tokens and the hashes of their
/// blocks.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// The number -1, which ends a replay.
const END: u64 = u64::MAX;

impl Subscription {
    /// Returns a subscription that has received no events yet.
    pub(super) fn new(config: Config, residency: Arc<Residency>, metrics: Arc<Metrics>) -> Self {
        Self {
            config,
            residency,
            metrics,
            sequence: Sequence::default(),
        }
    }

    /// Connects and follows the engine's events until the future is dropped. Calls `caught_up` after each connection,
    /// once all available batches of events were received.
    pub(super) async fn run(mut self, caught_up: impl Fn()) {
        let mut pause = PAUSES[0];
        loop {
            let Err(error) = self.follow(&caught_up, &mut pause).await;
            self.metrics.connected.set(0);
            tracing::warn!(
                error = format!("{error:#}"),
                "the engine's events do not arrive"
            );
            sleep(pause).await;
            pause = PAUSES[1].min(2 * pause);
        }
    }

    /// Follows the engine's events over one connection until it fails, and returns the error. Resets `pause` once
    /// connected.
    async fn follow(
        &mut self,
        caught_up: &impl Fn(),
        pause: &mut Duration,
    ) -> anyhow::Result<Infallible> {
        let events = self.config.events.clone();
        let mut engine = connect(&events, Socket::Sub).await?;
        engine.subscribe(self.config.topic.as_bytes()).await?;
        if self.config.replay.is_none() && !self.sequence.is_empty() {
            self.forget(ResetCause::Disconnected);
            self.sequence.reset();
        }
        self.catch_up().await?;
        *pause = PAUSES[0];
        self.metrics.connected.set(1);
        self.metrics.connections.inc();
        tracing::info!(events, "following the engine");
        caught_up();
        loop {
            match timeout(SILENCE, engine.receive()).await {
                Ok(Ok(Received::Message(frames))) => self.take(&frames).await?,
                Ok(Ok(Received::Subscribe(_) | Received::Cancel(_))) => {}
                Ok(Err(error)) => return Err(error).with_context(|| events.clone()),
                Err(_) => self.catch_up().await?,
            }
        }
    }

    /// Reads a published message and applies the batch of events in it. Requests a replay first if batches before it
    /// are missing.
    async fn take(&mut self, frames: &[Bytes]) -> anyhow::Result<()> {
        let (number, payload) = numbered(frames)?;
        let Some(batch) = self.read(number, payload) else {
            return Ok(());
        };
        let mark = BatchStamp {
            number,
            seconds: batch.seconds,
        };
        if self.sequence.classify(mark) == BatchKind::Restart {
            self.forget(ResetCause::Restart);
            self.sequence.reset();
        }
        if self.sequence.classify(mark) == BatchKind::Gap {
            self.catch_up().await?;
        }
        self.apply(mark, batch);
        Ok(())
    }

    /// Requests the batches of events that were missed; does nothing if there is no replay socket.
    async fn catch_up(&mut self) -> anyhow::Result<()> {
        let Some(replay) = self.config.replay.clone() else {
            return Ok(());
        };
        let caught_up = timeout(CATCH_UP, self.ask_all(&replay)).await;
        let caught_up = caught_up.map_err(anyhow::Error::from).flatten();
        caught_up.with_context(|| format!("{replay} does not repeat events"))
    }

    /// Requests replays until all available batches of events were received.
    async fn ask_all(&mut self, replay: &str) -> anyhow::Result<()> {
        let mut restarts = 0;
        loop {
            match self.ask(replay).await? {
                ReplayResult::All => return Ok(()),
                ReplayResult::Some => {}
                ReplayResult::Another => {
                    self.forget(ResetCause::Restart);
                    self.sequence.reset();
                    restarts += 1;
                    if restarts > MAX_RESTARTS {
                        bail!("it has begun anew {restarts} times meanwhile");
                    }
                }
            }
        }
    }

    /// Requests a replay from the last received batch of cache events on, or of all batches if none was received, and
    /// applies the new ones.
    async fn ask(&mut self, replay: &str) -> anyhow::Result<ReplayResult> {
        self.metrics.replays.inc();
        let mut engine = connect(replay, Socket::Dealer).await?;
        let from = self.sequence.from().to_be_bytes();
        timeout(ANSWER, engine.send(&[b"", &from])).await??;
        let mut is_confirmed = self.sequence.is_empty();
        let mut is_new = false;
        loop {
            let frames = match timeout(ANSWER, engine.receive()).await {
                Err(_) if is_new => return Ok(ReplayResult::Some),
                received => match received?? {
                    Received::Message(frames) => frames,
                    Received::Subscribe(_) | Received::Cancel(_) => continue,
                },
            };
            let (number, payload) = numbered(&frames)?;
            if number == END && is_confirmed {
                return Ok(ReplayResult::All);
            }
            if !is_confirmed {
                is_confirmed = match read::batch(payload) {
                    Ok(read::Batch { seconds, .. }) => {
                        self.sequence.confirms(BatchStamp { number, seconds })
                    }
                    Err(_) => self.sequence.confirms_skipped(number, hash_of(payload)),
                };
                if !is_confirmed {
                    return Ok(ReplayResult::Another);
                }
            } else if let Some(batch) = self.read(number, payload) {
                let seconds = batch.seconds;
                let mark = BatchStamp { number, seconds };
                if is_new && self.sequence.classify(mark) == BatchKind::Gap {
                    return Ok(ReplayResult::Some);
                }
                self.apply(mark, batch);
                is_new = true;
            }
        }
    }

    /// Reads the batch of cache events with this `number`. Returns `None` if it is malformed: the changes in it are
    /// then unknown, so what is known of the engine's cache is discarded, once for each such batch.
    fn read(&mut self, number: u64, payload: &[u8]) -> Option<read::Batch> {
        match read::batch(payload) {
            Ok(batch) => Some(batch),
            Err(_) if self.sequence.confirms_skipped(number, hash_of(payload)) => {
                self.metrics.batch("known");
                None
            }
            Err(error) => {
                tracing::warn!(number, %error, "a batch of the engine's cannot be read");
                self.metrics.batch("unreadable");
                self.forget(ResetCause::Unreadable);
                self.sequence.skip(number, hash_of(payload));
                None
            }
        }
    }

    /// Applies a batch of events unless it was received before. If batches before it are missing or the engine
    /// restarted, discards first what is known of the engine's cache.
    fn apply(&mut self, mark: BatchStamp, batch: read::Batch) {
        match self.sequence.classify(mark) {
            BatchKind::Known => return self.metrics.batch("known"),
            BatchKind::Next => {}
            BatchKind::Gap | BatchKind::Restart if self.sequence.is_empty() => {}
            BatchKind::Gap => self.forget(ResetCause::Gap),
            BatchKind::Restart => self.forget(ResetCause::Restart),
        }
        self.metrics.batch("taken");
        self.residency.events(batch.events);
        self.sequence.advance(mark);
    }

    fn forget(&self, lost: ResetCause) {
        tracing::warn!(
            cause = lost.name(),
            "what the engine holds is not known any more"
        );
        self.metrics.forgotten(lost);
        self.residency.forget();
    }
}

fn hash_of(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(payload);
    hasher.finish()
}

/// Connects a socket of kind `socket` to `endpoint`, `tcp://HOST:PORT`.
///
/// # Errors
/// Returns an error unless a compatible peer answers within ten seconds.
pub async fn connect(endpoint: &str, socket: Socket) -> anyhow::Result<Peer<TcpStream>> {
    let address = endpoint.strip_prefix("tcp://").unwrap_or(endpoint);
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        keep_alive(&stream)?;
        anyhow::Ok(Peer::meet(stream, socket, MAX_MESSAGE_BYTES).await?)
    };
    let connected = timeout(ANSWER, connecting).await;
    let connected = connected.map_err(anyhow::Error::from).flatten();
    connected.with_context(|| format!("cannot connect to {endpoint}"))
}

/// Returns the number of the batch of cache events in a message, and the batch itself: the last two frames. Before them
/// come a topic, an empty frame, or both, depending on the socket and on vLLM's version.
///
/// # Errors
/// Returns an error if there are fewer than two frames or the number does not have 8 bytes.
pub fn numbered(frames: &[Bytes]) -> anyhow::Result<(u64, &Bytes)> {
    let [.., number, payload] = frames else {
        let frames = frames.len();
        bail!("a message of the engine's has {frames} frames, not at least 2");
    };
    let number: [u8; 8] = number[..].try_into().with_context(|| {
        let bytes = number.len();
        format!("a batch's number has {bytes} bytes, not 8")
    })?;
    Ok((u64::from_be_bytes(number), payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::Limits;
    use crate::kv::vllm::{Encoding, write};
    use foreword_engine::cache::CacheEvent;
    use std::net::SocketAddr;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    fn subscription(replay: SocketAddr) -> Subscription {
        let limits = Limits {
            blocks: 10,
            prompts: 10,
            prompt_tokens: 100,
        };
        let residency = Arc::new(Residency::new(limits));
        let metrics = Arc::new(Metrics::new(Arc::clone(&residency)));
        let config = Config {
            events: String::new(),
            replay: Some(format!("tcp://{replay}")),
            topic: String::new(),
        };
        Subscription::new(config, residency, metrics)
    }

    #[tokio::test]
    async fn an_endpoint_that_says_another_for_ever_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // Two batches with a gap between them, and then another one in place of the first.
        let batch = |seconds| write::batch(&[CacheEvent::Cleared], seconds, Encoding::Map);
        let [early, late] = [1.0, 2.0].map(|seconds| batch(seconds).unwrap().unwrap());
        let asked = tokio::spawn(async move {
            for asked in 0_u32.. {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let peer = Peer::meet(stream, Socket::Router, 1024).await;
                let mut peer = peer.unwrap();
                let request = peer.receive().await.unwrap();
                assert!(matches!(request, Received::Message(_)));
                let batches = match asked % 2 {
                    0 => [(5_u64, &early), (7, &early)],
                    _ => [(5, &late), (6, &late)],
                };
                for (number, batch) in batches {
                    // The peer may have disconnected after the first one.
                    let _ = peer.send(&[b"", &number.to_be_bytes(), batch]).await;
                }
            }
        });
        let mut subscription = subscription(address);
        let error = subscription.catch_up().await.unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("begun anew 4 times"), "{error}");
        assert_eq!(subscription.metrics.replays.get(), 8);
        asked.abort();
    }

    #[tokio::test]
    async fn an_unreadable_last_batch_is_forgotten_for_and_replayed_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let good = write::batch(&[CacheEvent::Cleared], 1.0, Encoding::Map);
        let batches = [good.unwrap().unwrap(), b"garbage".to_vec()];
        let engine = tokio::spawn(async move {
            let mut sent = 0;
            for _ in 0..3 {
                let (stream, _) = listener.accept().await.unwrap();
                let mut peer = Peer::meet(stream, Socket::Router, 1024).await.unwrap();
                let Received::Message(frames) = peer.receive().await.unwrap() else {
                    panic!("no request");
                };
                let from = u64::from_be_bytes(frames.last().unwrap()[..].try_into().unwrap());
                for (number, batch) in (0..).zip(&batches).skip(from as usize) {
                    let number = u64::to_be_bytes(number);
                    peer.send(&[b"", &number, batch]).await.unwrap();
                    sent += 1;
                }
                peer.send(&[b"", &END.to_be_bytes(), b""]).await.unwrap();
            }
            sent
        });
        let mut subscription = subscription(address);
        for _ in 0..3 {
            subscription.catch_up().await.unwrap();
        }
        let metrics = subscription.metrics.encode().unwrap();
        assert_eq!(
            (subscription.metrics.replays.get(), engine.await.unwrap()),
            (3, 4)
        );
        let forgotten = "foreword_bridge_forgotten_total{cause=\"unreadable\"} 1";
        assert!(metrics.contains(forgotten), "{metrics}");
    }

    #[tokio::test]
    async fn an_engine_that_announces_more_than_a_batch_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let engine = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut greeting = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL".to_vec();
            greeting.resize(64, 0);
            let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";
            let frame = b"\x02\x10\0\0\0\0\0\0\0";
            let bytes = [&greeting[..], ready, frame].concat();
            stream.write_all(&bytes).await.unwrap();
            stream
        });
        let mut subscription = subscription(address);
        subscription.config.events = format!("tcp://{address}");
        subscription.config.replay = None;
        let mut pause = PAUSES[0];
        let error = subscription.follow(&|| {}, &mut pause).await;
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("1152921504606846976 bytes"), "{error}");
        drop(engine.await.unwrap());
    }

    fn message(frames: &[&[u8]]) -> Vec<Bytes> {
        let frames = frames.iter().copied();
        frames.map(Bytes::copy_from_slice).collect()
    }

    #[test]
    fn number_and_batch_are_the_last_frames_whatever_stands_before() {
        let number = 7_u64.to_be_bytes();
        let frames: [&[&[u8]]; 3] = [
            &[b"kv-events", &number, b"batch"],
            &[b"", &number, b"batch"],
            &[b"", b"kv-events", &number, b"batch"],
        ];
        for frames in frames {
            let frames = message(frames);
            let (number, batch) = numbered(&frames).unwrap();
            assert_eq!((number, &batch[..]), (7, &b"batch"[..]));
        }
        assert!(numbered(&message(&[b"alone"])).is_err());
        assert!(numbered(&message(&[b"topic", b"short", b"batch"])).is_err());
    }
}
