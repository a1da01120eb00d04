//! What a ZeroMQ peer sends. The first byte says as what it is received, and how few bytes arrive at a time.

use axum::body::Bytes;
use foreword_server::zmtp::{Peer, Received, Socket};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, ReadBuf, join, sink};

pub(crate) fn run(input: &[u8]) {
    let Some((setup, bytes)) = input.split_first() else {
        return;
    };
    let sockets = [Socket::Pub, Socket::Sub, Socket::Router, Socket::Dealer];
    let socket = sockets[usize::from(setup & 3)];
    let whole = received(bytes, socket, bytes.len(), LIMIT);
    let pieces = received(bytes, socket, usize::from(setup >> 2) + 1, LIMIT);
    assert_eq!(whole, pieces, "it depends on how the bytes arrive");
    let most = |held: &(Vec<Received>, String)| held.0.iter().map(size).max().unwrap_or(0);
    assert!(most(&whole) <= LIMIT);
    // Where nothing is refused for its length, an announced length takes no memory either: these may be 2^60 bytes.
    let unbounded = received(bytes, socket, bytes.len(), usize::MAX);
    let sizes: usize = unbounded.0.iter().map(size).sum();
    assert!(sizes <= bytes.len());
}

/// Everything that is received, and the error that ends it.
fn received(bytes: &[u8], socket: Socket, piece: usize, limit: usize) -> (Vec<Received>, String) {
    let mut received = Vec::new();
    let all = async {
        let mut peer = Peer::meet(join(Pieces { bytes, piece }, sink()), socket, limit).await?;
        loop {
            received.push(peer.receive().await?);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let ended: Result<(), foreword_server::zmtp::Error> = runtime.expect("a runtime").block_on(all);
    let error = ended.expect_err("the bytes end").to_string();
    (received, error)
}

fn size(received: &Received) -> usize {
    match received {
        Received::Message(frames) => frames.iter().map(Bytes::len).sum(),
        Received::Subscribe(topic) | Received::Cancel(topic) => topic.len(),
    }
}

/// Bytes of which few arrive at a time.
struct Pieces<'b> {
    bytes: &'b [u8],
    piece: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.piece.min(self.bytes.len()).min(buffer.remaining());
        let (now, later) = self.bytes.split_at(count);
        buffer.put_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(()))
    }
}

const LIMIT: usize = 300;

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut greeting = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL".to_vec();
    greeting.resize(64, 0);
    let ready = |socket: &str| {
        let name = socket.len() as u8;
        let body = [
            b"\x05READY\x0bSocket-Type\0\0\0",
            &[name][..],
            socket.as_bytes(),
            b"\x08Identity\0\0\0\0",
        ];
        let body = body.concat();
        [&[4, body.len() as u8], &body[..]].concat()
    };
    let huge = b"\x02\x10\0\0\0\0\0\0\0";
    let long = [&b"\x02\0\0\0\0\0\0\x01\0"[..], &[7; 256]].concat();
    let [subscriptions, request, batch] = [
        &b"\0\x03\x01kv\x04\x0c\x09SUBSCRIBEkv\x04\x09\x06CANCELkv\0\x01\0\x04\x0c\x04PING\0\x0ahello"[..],
        b"\x01\0\0\x08\0\0\0\0\0\0\0\x05",
        b"\x01\x02kv\x01\x08\0\0\0\0\0\0\0\x01\0\x05batch",
    ];
    [
        (0, "SUB", subscriptions),
        (0, "XSUB", &huge[..]),
        (1, "PUB", batch),
        (1, "XPUB", &long),
        (2, "REQ", request),
        (3, "ROUTER", batch),
        (3, "PULL", b"\x04\x06\x05ERROR"),
    ]
    .map(|(setup, socket, rest)| [&[setup | 8], &greeting[..], &ready(socket), rest].concat())
    .into_iter()
    .chain([[&[1][..], &greeting, huge].concat()])
    .collect()
}
