//! An engine as far as it publishes KV events: sockets, batches and numbers as vLLM has them, scripted by a test.

use axum::body::Bytes;
use foreword_engine::TokenId;
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use zeromq::{
    Endpoint, PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage, ZmqResult,
};

/// How an engine writes events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) form: Form,
    pub(crate) hashes: Hashes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// With names, since 2026.
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

/// What an engine tells; blocks by numbers that a test chooses.
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
    /// Of a version to come.
    Future,
}

const TOPIC: &[u8] = b"kv-events";

/// A batch's number and bytes.
type Batch = (u64, Vec<u8>);

pub(crate) struct Engine {
    wire: Wire,
    publish: PubSocket,
    pub(crate) events: SocketAddr,
    pub(crate) replay: Option<SocketAddr>,
    /// Ends with the engine.
    _repeating: JoinSet<()>,
    kept: Arc<Mutex<Vec<Batch>>>,
    /// Of the next batch.
    number: u64,
}

impl Engine {
    /// On ports of its own.
    pub(crate) async fn start(wire: Wire, repeats: bool) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let engine = Self::bind(wire, any, repeats.then_some(any)).await;
        engine.expect("port 0 is free")
    }

    /// At the address of one that is gone, and without repeating anything.
    pub(crate) async fn at(wire: Wire, events: SocketAddr) -> Self {
        Self::again(wire, events, None).await
    }

    /// Another life at the same addresses.
    pub(crate) async fn restart(self) -> Self {
        let (wire, events, replay) = (self.wire, self.events, self.replay);
        drop(self);
        Self::again(wire, events, replay).await
    }

    /// The same life, but its subscribers have to come back.
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

    async fn bind(wire: Wire, events: SocketAddr, replay: Option<SocketAddr>) -> ZmqResult<Self> {
        let mut publish = PubSocket::new();
        let events = bound(publish.bind(&format!("tcp://{events}")).await?, events);
        let kept = Arc::default();
        let (mut replay_address, mut repeating) = (None, JoinSet::new());
        if let Some(replay) = replay {
            let mut router = RouterSocket::new();
            replay_address = Some(bound(
                router.bind(&format!("tcp://{replay}")).await?,
                replay,
            ));
            repeating.spawn(repeat(router, Arc::clone(&kept)));
        }
        Ok(Self {
            wire,
            publish,
            events,
            replay: replay_address,
            _repeating: repeating,
            kept,
            number: 0,
        })
    }

    /// Tells these events, in one batch.
    pub(crate) async fn publish(&mut self, events: &[Event]) {
        let (number, batch) = self.keep(events);
        let frames = [TOPIC.to_vec(), number.to_be_bytes().to_vec(), batch];
        self.publish.send(message(frames)).await.expect("sent");
    }

    /// The same, but nobody receives it: it can only be asked for.
    pub(crate) fn lose(&mut self, events: &[Event]) {
        self.keep(events);
    }

    /// What it kept to be repeated is gone.
    pub(crate) fn forget(&mut self) {
        self.kept.lock().unwrap().clear();
    }

    /// A batch that is none.
    pub(crate) async fn publish_garbage(&mut self) {
        let number = self.number;
        self.number += 1;
        let garbage = vec![0xc1];
        let frames = [TOPIC.to_vec(), number.to_be_bytes().to_vec(), garbage];
        self.publish.send(message(frames)).await.expect("sent");
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

    /// Publishes empty batches until `arrived`: a subscription takes effect some time after it was made.
    pub(crate) async fn until_heard(&mut self, mut arrived: impl AsyncFnMut() -> bool) {
        while !arrived().await {
            self.publish(&[]).await;
            tokio::task::yield_now().await;
        }
    }
}

fn bound(endpoint: Endpoint, asked: SocketAddr) -> SocketAddr {
    match endpoint {
        Endpoint::Tcp(_, port) => SocketAddr::new(asked.ip(), port),
        other => panic!("{other} is no TCP address"),
    }
}

/// Batches that reach whoever asks for more, before the last one: what a queue holds that is too short for the answer.
pub(crate) const REPEATED: usize = 20;

/// As vLLM's publisher: every batch with its topic, then -1.
async fn repeat(mut router: RouterSocket, kept: Arc<Mutex<Vec<Batch>>>) {
    while let Ok(request) = router.recv().await {
        let frames = request.into_vec();
        let [client, empty, from] = &frames[..] else {
            panic!("a request has 3 frames, got {}", frames.len());
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
            let topic = TOPIC.to_vec();
            let number = number.to_be_bytes().to_vec();
            let frames = [client.to_vec(), empty.to_vec(), topic, number, batch];
            // Whoever asked may be gone.
            let _ = router.send(message(frames)).await;
        }
    }
}

fn message<const N: usize>(frames: [Vec<u8>; N]) -> ZmqMessage {
    let frames: Vec<Bytes> = frames.into_iter().map(Into::into).collect();
    frames.try_into().expect("frames")
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

    /// As vLLM makes them: 32 bytes, or the last 8 of these as a number of either sign.
    fn hash(self, block: u64) -> Value {
        // Far apart, and more than 63 bits for most.
        let hash = block.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match self.hashes {
            Hashes::Unsigned => Value::Unsigned(hash),
            Hashes::Signed => Value::Signed(hash.cast_signed()),
            Hashes::Bytes => Value::Bytes([[7; 24].as_slice(), &hash.to_be_bytes()].concat()),
        }
    }
}

/// What msgpack can hold.
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
