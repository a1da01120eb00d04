//! A scripted publisher of KV events, with vLLM's sockets, batches and numbers.

use foreword_engine::TokenId;
use foreword_server::zmtp::{Error, Peer, Received, Socket};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinSet;

/// The format of an engine's events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) form: Form,
    pub(crate) hashes: Hashes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// Named fields, since 2026.
    Map,
    /// Fields by position, as before 2026.
    Array,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Hashes {
    Unsigned,
    Signed,
    Bytes,
}

impl Wire {
    pub(crate) const TODAY: Self = Self {
        form: Form::Map,
        hashes: Hashes::Unsigned,
    };
}

/// An engine's event; a test chooses the blocks' numbers.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Stored {
        blocks: Vec<u64>,
        parent: Option<u64>,
        tokens: Vec<TokenId>,
        salt: Option<&'static str>,
    },
    Removed(Vec<u64>),
    Cleared,
    /// An event of a future version.
    Future,
}

const TOPIC: &[u8] = b"kv-events";

/// A batch's number and bytes.
type Batch = (u64, Vec<u8>);

pub(crate) struct Engine {
    wire: Wire,
    publish: broadcast::Sender<Batch>,
    pub(crate) events: SocketAddr,
    pub(crate) replay: Option<SocketAddr>,
    /// Its sockets, which are closed with the engine.
    _sockets: JoinSet<()>,
    kept: Arc<Mutex<Vec<Batch>>>,
    /// Sequence number of the next batch.
    number: u64,
}

impl Engine {
    /// Starts an engine on free ports.
    pub(crate) async fn start(wire: Wire, repeats: bool) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let engine = Self::bind(wire, any, repeats.then_some(any)).await;
        engine.expect("port 0 is free")
    }

    /// Starts an engine at the address of a stopped one, without replay.
    pub(crate) async fn at(wire: Wire, events: SocketAddr) -> Self {
        Self::again(wire, events, None).await
    }

    /// Restarts the engine at the same addresses.
    pub(crate) async fn restart(self) -> Self {
        let (wire, events, replay) = (self.wire, self.events, self.replay);
        drop(self);
        Self::again(wire, events, replay).await
    }

    /// Closes all connections of the engine, which keeps its state.
    pub(crate) async fn disconnect(self) -> Self {
        let (kept, number) = (self.kept.lock().unwrap().clone(), self.number);
        let engine = self.restart().await;
        *engine.kept.lock().unwrap() = kept;
        Self { number, ..engine }
    }

    async fn again(wire: Wire, events: SocketAddr, replay: Option<SocketAddr>) -> Self {
        loop {
            match Self::bind(wire, events, replay).await {
                Ok(engine) => return engine,
                // The old sockets are being closed.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    async fn bind(wire: Wire, events: SocketAddr, replay: Option<SocketAddr>) -> io::Result<Self> {
        let (publish, kept, mut sockets) =
            (broadcast::Sender::new(64), Arc::default(), JoinSet::new());
        let listener = TcpListener::bind(events).await?;
        let events = listener.local_addr()?;
        let batches = publish.clone();
        sockets.spawn(each(listener, move |stream| {
            send_all(stream, batches.subscribe())
        }));
        let mut replay_address = None;
        if let Some(replay) = replay {
            let listener = TcpListener::bind(replay).await?;
            replay_address = Some(listener.local_addr()?);
            let kept = Arc::clone(&kept);
            sockets.spawn(each(listener, move |stream| {
                repeat(stream, Arc::clone(&kept))
            }));
        }
        Ok(Self {
            wire,
            publish,
            events,
            replay: replay_address,
            _sockets: sockets,
            kept,
            number: 0,
        })
    }

    /// Publishes these events in one batch.
    pub(crate) fn publish(&mut self, events: &[Event]) {
        let batch = self.keep(events);
        // There may be no subscriber yet.
        let _ = self.publish.send(batch);
    }

    /// Stores these events in a batch that is only available for replay.
    pub(crate) fn lose(&mut self, events: &[Event]) {
        self.keep(events);
    }

    /// Empties the replay buffer.
    pub(crate) fn forget(&mut self) {
        self.kept.lock().unwrap().clear();
    }

    /// Publishes a malformed batch.
    pub(crate) fn publish_garbage(&mut self) {
        let number = self.number;
        self.number += 1;
        let _ = self.publish.send((number, vec![0xc1]));
    }

    fn keep(&mut self, events: &[Event]) -> Batch {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let events = events.iter().map(|event| self.wire.event(event)).collect();
        let batch = [
            Value::Float(now.as_secs_f64()),
            Value::List(events),
            Value::Unsigned(0),
        ];
        let batch = rmp_serde::to_vec(&Value::List(batch.into())).expect("in memory");
        let batch = (self.number, batch);
        self.number += 1;
        self.kept.lock().unwrap().push(batch.clone());
        batch
    }

    /// Publishes empty batches until `arrived`, because a subscription takes effect with a delay.
    pub(crate) async fn until_heard(&mut self, mut arrived: impl AsyncFnMut() -> bool) {
        while !arrived().await {
            self.publish(&[]);
            tokio::task::yield_now().await;
        }
    }
}

/// Accepts connections for ever, and runs `work` for each.
async fn each<F: Future<Output = Result<(), Error>> + Send + 'static>(
    listener: TcpListener,
    work: impl Fn(TcpStream) -> F,
) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        connections.spawn(work(stream));
    }
}

/// Sends all batches from the first subscription on.
async fn send_all(stream: TcpStream, mut batches: broadcast::Receiver<Batch>) -> Result<(), Error> {
    let mut peer = Peer::meet(stream, Socket::Pub, 1024).await?;
    let Received::Subscribe(topic) = peer.receive().await? else {
        panic!("a subscriber subscribes");
    };
    assert!(TOPIC.starts_with(&topic), "{topic:?}");
    loop {
        let (number, batch) = match batches.recv().await {
            Ok(batch) => batch,
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return Ok(()),
        };
        peer.send(&[TOPIC, &number.to_be_bytes(), &batch]).await?;
    }
}

/// Number of batches before the last one that a replay returns, as if the queue were too short for the rest.
pub(crate) const REPEATED: usize = 20;

/// Replays like vLLM's publisher: every batch with its topic, then -1.
async fn repeat(stream: TcpStream, kept: Arc<Mutex<Vec<Batch>>>) -> Result<(), Error> {
    let mut peer = Peer::meet(stream, Socket::Router, 1024).await?;
    while let Received::Message(request) = peer.receive().await? {
        let [empty, from] = &request[..] else {
            panic!("a request has 2 frames, got {}", request.len());
        };
        let from = u64::from_be_bytes(from[..].try_into().expect("8 bytes"));
        let kept: Vec<Batch> = kept.lock().unwrap().clone();
        let mut kept: Vec<Batch> = kept
            .into_iter()
            .filter(|(number, _)| *number >= from)
            .collect();
        if kept.len() > REPEATED {
            kept.drain(REPEATED..kept.len() - 1);
        }
        for (number, batch) in kept.into_iter().chain([(u64::MAX, Vec::new())]) {
            let frames = [&**empty, TOPIC, &number.to_be_bytes(), &batch];
            peer.send(&frames).await?;
        }
    }
    Ok(())
}

impl Wire {
    fn event(self, event: &Event) -> Value {
        let list = |numbers: &[u64]| {
            Value::List(numbers.iter().map(|number| self.hash(*number)).collect())
        };
        let text = |text: &str| Value::Text(text.to_owned());
        let fields = match event {
            Event::Stored {
                blocks,
                parent,
                tokens,
                salt,
            } => {
                let size = tokens.len() / blocks.len();
                let keys = (0..blocks.len()).map(|at| match salt {
                    Some(salt) if at == 0 && parent.is_none() => Value::List(vec![text(salt)]),
                    _ => Value::Nil,
                });
                vec![
                    ("type", text("BlockStored")),
                    ("block_hashes", list(blocks)),
                    (
                        "parent_block_hash",
                        parent.map_or(Value::Nil, |block| self.hash(block)),
                    ),
                    (
                        "token_ids",
                        Value::List(
                            tokens
                                .iter()
                                .map(|&token| Value::Unsigned(token.into()))
                                .collect(),
                        ),
                    ),
                    ("block_size", Value::Unsigned(size as u64)),
                    ("lora_id", Value::Nil),
                    ("medium", text("GPU")),
                    ("lora_name", Value::Nil),
                    ("extra_keys", Value::List(keys.collect())),
                    ("group_idx", Value::Unsigned(0)),
                    ("kv_cache_spec_kind", text("full_attention")),
                    ("kv_cache_spec_sliding_window", Value::Nil),
                    ("of_a_version_to_come", Value::List(vec![Value::Float(0.5)])),
                ]
            }
            Event::Removed(blocks) => vec![
                ("type", text("BlockRemoved")),
                ("block_hashes", list(blocks)),
                ("medium", text("GPU")),
                ("group_idx", Value::Unsigned(0)),
                ("of_a_version_to_come", Value::Nil),
            ],
            Event::Cleared => vec![("type", text("AllBlocksCleared"))],
            Event::Future => vec![("type", text("BlockPondered")), ("why", Value::Float(0.1))],
        };
        match self.form {
            Form::Map => Value::Map(fields),
            Form::Array => Value::List(fields.into_iter().map(|(_, value)| value).collect()),
        }
    }

    /// A hash like vLLM's: 32 bytes, or the last 8 of these as a signed or unsigned number.
    fn hash(self, block: u64) -> Value {
        // The hashes are far apart, and most have more than 63 bits.
        let hash = block.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match self.hashes {
            Hashes::Unsigned => Value::Unsigned(hash),
            Hashes::Signed => Value::Signed(hash.cast_signed()),
            Hashes::Bytes => Value::Bytes([[7; 24].as_slice(), &hash.to_be_bytes()].concat()),
        }
    }
}

/// A MessagePack value, as vLLM encodes its KV events.
enum Value {
    Nil,
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Map(Vec<(&'static str, Value)>),
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nil => serializer.serialize_unit(),
            Self::Unsigned(number) => serializer.serialize_u64(*number),
            Self::Signed(number) => serializer.serialize_i64(*number),
            Self::Float(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => serializer.serialize_bytes(bytes),
            Self::List(values) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                values
                    .iter()
                    .try_for_each(|value| list.serialize_element(value))?;
                list.end()
            }
            Self::Map(values) => {
                let mut map = serializer.serialize_map(Some(values.len()))?;
                values
                    .iter()
                    .try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
        }
    }
}
