//! ZeroMQ's protocol over one connection: ZMTP 3 (rfc.zeromq.org/spec/23, and 37 for 3.1), without authentication.
//!
//! ```text
//!   greeting, 64 bytes    ff 0 0 0 0 0 0 0 0 7f │ 3, 0 │ "NULL", 20 bytes │ 32 zeros
//!   frame                 flags │ length, 1 byte or 8 │ body          flags: 1 more follow, 2 long, 4 command
//!   READY                 one command from each side: "Socket-Type", and other properties
//!   then                  messages of frames; subscriptions as commands (3.1) or as messages that begin with 0 or 1
//! ```
//!
//! Memory grows with the bytes that arrive, not with an announced length; a frame longer than the limit is refused when
//! its length is read. A peer has no send queue: a sender waits until the connection accepts the bytes. Publishers must
//! therefore store and drop batches, and callers must limit the time.
//!
//! Rust's ZeroMQ crate is not used, since it reserves memory for the announced length even before the handshake.

use axum::body::Bytes;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

foreword_ordering::named! {
    /// A kind of ZeroMQ socket.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Socket {
        /// A socket that publishes to subscribers.
        Pub = "PUB",
        /// A socket that subscribes to publishers.
        Sub = "SUB",
        /// A socket that answers requests.
        Router = "ROUTER",
        /// A socket that sends requests.
        Dealer = "DEALER",
    }
}

/// The other end of a connection, after the handshake as a socket of one kind.
#[derive(Debug)]
pub struct Peer<S> {
    stream: BufReader<S>,
    socket: Socket,
    /// Maximum length of a received message, in bytes.
    limit: usize,
    /// Received bytes of the flags and length of an incomplete frame, and (`body`) of its body.
    head: Vec<u8>,
    body: Vec<u8>,
    /// Received frames of an incomplete message, and (`held`) the sum of the lengths of their bodies.
    frames: Vec<Bytes>,
    held: usize,
    /// Bytes to send, and (`sent`) the number of them that are already sent.
    out: Vec<u8>,
    sent: usize,
}

/// A message or a change of subscriptions, received from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The frames of a message.
    Message(Vec<Bytes>),
    /// The peer of a PUB socket subscribes to messages whose first frame begins with these bytes.
    Subscribe(Bytes),
    /// The peer of a PUB socket cancels a subscription to messages whose first frame begins with these bytes.
    Cancel(Bytes),
}

/// The reason that a connection cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer violated the protocol, or requires authentication.
    #[error("not ZMTP 3 without authentication: {0}")]
    Protocol(&'static str),
    /// The peer's kind of socket cannot be connected to this one's.
    #[error("the peer's socket must be {expected}")]
    Socket {
        /// The kinds of sockets that can be connected to this one.
        expected: &'static str,
    },
    /// A command or message of the peer is longer than allowed.
    #[error("the peer sends {bytes} bytes, more than the limit of {limit}")]
    TooLong {
        /// Announced length of the frame, in bytes.
        bytes: u64,
        /// Maximum number of bytes that were allowed for the frame.
        limit: usize,
    },
}

impl Socket {
    /// Returns the kinds of sockets that can be connected to this one, for errors.
    fn peers(self) -> &'static str {
        match self {
            Self::Pub => "SUB or XSUB",
            Self::Sub => "PUB or XPUB",
            Self::Router => "DEALER, REQ or ROUTER",
            Self::Dealer => "ROUTER, REP or DEALER",
        }
    }

    fn may_talk_to(self, name: &[u8]) -> bool {
        let mut peers = self.peers().split([' ', ',']);
        peers.any(|peer| peer.len() > 2 && peer.as_bytes() == name)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    /// Performs the handshake as a socket of kind `socket`. `limit` is the maximum length of a received message, in
    /// bytes.
    ///
    /// # Errors
    /// Returns an error if the peer does not speak ZMTP 3, requires authentication, or has an incompatible socket, and
    /// [`Error::Io`] or [`Error::Closed`] if the connection fails.
    pub async fn meet(stream: S, socket: Socket, limit: usize) -> Result<Self, Error> {
        let mut peer = Self {
            stream: BufReader::with_capacity(READ_BYTES, stream),
            socket,
            limit,
            head: Vec::new(),
            body: Vec::new(),
            frames: Vec::new(),
            held: 0,
            out: GREETING.into(),
            sent: 0,
        };
        peer.flush().await?;
        fill(&mut peer.stream, &mut peer.body, GREETING.len()).await?;
        check_greeting(&std::mem::take(&mut peer.body))?;
        let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
        ready.extend((socket.name().len() as u32).to_be_bytes());
        ready.extend(socket.name().as_bytes());
        if matches!(socket, Socket::Router | Socket::Dealer) {
            ready.extend(b"\x08Identity\0\0\0\0");
        }
        peer.write(COMMAND, &ready);
        peer.flush().await?;
        let (flags, body) = peer.frame().await?;
        let Some((b"READY", properties)) = command(flags, &body) else {
            return Err(Error::Protocol("READY must follow the greeting"));
        };
        match property(properties, b"socket-type") {
            Some(name) if socket.may_talk_to(name) => Ok(peer),
            _ => Err(Error::Socket {
                expected: socket.peers(),
            }),
        }
    }

    /// Returns the next message or change of subscriptions, and answers pings meanwhile. Cancel-safe: a dropped call
    /// loses no bytes.
    ///
    /// # Errors
    /// Returns an error if the connection fails or the peer violates the protocol; the connection is then unusable.
    pub async fn receive(&mut self) -> Result<Received, Error> {
        loop {
            self.flush().await?;
            let (flags, body) = self.frame().await?;
            if flags & COMMAND != 0 {
                match command(flags, &body) {
                    Some((b"SUBSCRIBE", topic)) if self.socket == Socket::Pub => {
                        return Ok(Received::Subscribe(body.slice_ref(topic)));
                    }
                    Some((b"CANCEL", topic)) if self.socket == Socket::Pub => {
                        return Ok(Received::Cancel(body.slice_ref(topic)));
                    }
                    // A time to live, and a context of at most 16 bytes, which is returned.
                    Some((b"PING", [_, _, context @ ..])) if context.len() <= 16 => {
                        self.write(COMMAND, &[b"\x04PONG", context].concat());
                    }
                    Some((b"ERROR", _)) => return Err(Error::Protocol("the peer sent an ERROR")),
                    Some(_) => {}
                    None => return Err(Error::Protocol("a command without a name")),
                }
                continue;
            }
            self.held += body.len();
            self.frames.push(body);
            if flags & MORE != 0 {
                if self.frames.len() == MAX_FRAMES {
                    return Err(Error::Protocol("a message has more than 16 frames"));
                }
                continue;
            }
            self.held = 0;
            let frames = std::mem::take(&mut self.frames);
            return Ok(match (self.socket, &frames[..]) {
                (Socket::Pub, [frame]) if frame.first() == Some(&1) => {
                    Received::Subscribe(frame.slice(1..))
                }
                (Socket::Pub, [frame]) if frame.first() == Some(&0) => {
                    Received::Cancel(frame.slice(1..))
                }
                _ => Received::Message(frames),
            });
        }
    }

    /// Sends a message of these frames. Returns when all bytes are handed to the connection. If the call is dropped,
    /// the next one first sends the rest.
    ///
    /// # Errors
    /// Returns an error if the connection fails.
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), Error> {
        self.flush().await?;
        for (at, frame) in frames.iter().enumerate() {
            let is_last = at + 1 == frames.len();
            self.write(if is_last { 0 } else { MORE }, frame);
        }
        self.flush().await
    }

    /// Subscribes to messages whose first frame begins with `topic`, in ZMTP 3.0's form, which later versions accept.
    ///
    /// # Errors
    /// Returns an error if the connection fails.
    pub async fn subscribe(&mut self, topic: &[u8]) -> Result<(), Error> {
        self.send(&[&[&[1], topic].concat()]).await
    }

    fn write(&mut self, flags: u8, body: &[u8]) {
        match u8::try_from(body.len()) {
            Ok(length) => self.out.extend([flags, length]),
            Err(_) => {
                self.out.push(flags | LONG);
                self.out.extend((body.len() as u64).to_be_bytes());
            }
        }
        self.out.extend_from_slice(body);
    }

    async fn flush(&mut self) -> Result<(), Error> {
        while let Some(rest @ [_, ..]) = self.out.get(self.sent..) {
            match self.stream.write(rest).await? {
                0 => return Err(Error::Closed),
                bytes => self.sent += bytes,
            }
        }
        self.out.clear();
        self.out.shrink_to(READ_BYTES);
        self.sent = 0;
        Ok(())
    }

    /// Reads the next frame, and returns its flags and body. Cancel-safe: a dropped call loses no bytes.
    async fn frame(&mut self) -> Result<(u8, Bytes), Error> {
        fill(&mut self.stream, &mut self.head, 1).await?;
        let flags = self.head.first().copied().unwrap_or_default();
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(Error::Protocol("a frame's flags"));
        }
        let length_bytes = if flags & LONG == 0 { 1 } else { 8 };
        fill(&mut self.stream, &mut self.head, 1 + length_bytes).await?;
        let length = self.head.iter().skip(1);
        let length = length.fold(0, |length, byte| length << 8 | u64::from(*byte));
        let limit = match flags & COMMAND {
            0 => self.limit - self.held,
            _ => COMMAND_BYTES,
        };
        let bytes = usize::try_from(length).ok().filter(|bytes| *bytes <= limit);
        let bytes = bytes.ok_or(Error::TooLong {
            bytes: length,
            limit,
        })?;
        fill(&mut self.stream, &mut self.body, bytes).await?;
        self.head.clear();
        Ok((flags, std::mem::take(&mut self.body).into()))
    }
}

/// Reads from `stream` until `bytes` has `length` bytes. Its memory grows with the received bytes, not with `length`.
async fn fill(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut Vec<u8>,
    length: usize,
) -> Result<(), Error> {
    while let Some(missing) = length
        .checked_sub(bytes.len())
        .filter(|&missing| missing > 0)
    {
        if (&mut *stream).take(missing as u64).read_buf(bytes).await? == 0 {
            return Err(Error::Closed);
        }
    }
    Ok(())
}

fn check_greeting(greeting: &[u8]) -> Result<(), Error> {
    let places = [0, 9, 10].map(|at| greeting.get(at));
    let [Some(0xff), Some(0x7f), Some(version)] = places else {
        return Err(Error::Protocol("another signature"));
    };
    if *version < 3 {
        return Err(Error::Protocol("an earlier version"));
    }
    let mechanism = greeting.get(12..).unwrap_or_default();
    if !mechanism.starts_with(b"NULL\0") {
        return Err(Error::Protocol("another mechanism than NULL"));
    }
    Ok(())
}

/// Returns the name and content of a command; `None` if the frame is no command or malformed.
fn command(flags: u8, body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = body.split_first().filter(|_| flags & COMMAND != 0)?;
    rest.split_at_checked((*length).into())
}

/// Returns the value of the property `wanted` (in any case) in the properties of a READY command; `None` if it is
/// absent or they are malformed.
fn property<'a>(mut properties: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (length, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked((*length).into())?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, rest) = rest.split_at_checked(length)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        properties = rest;
    }
}

/// This side's greeting: signature, version 3.0 (so that peers send subscriptions as messages), mechanism, and zeros.
const GREETING: [u8; 64] = {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    let mechanism = b"NULL";
    let mut at = 0;
    while at < mechanism.len() {
        greeting[12 + at] = mechanism[at];
        at += 1;
    }
    greeting
};
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// Maximum length of a received command, in bytes: READY with its properties, or a subscription.
const COMMAND_BYTES: usize = 4096;
/// Maximum number of frames of a message. Bounded, since an empty frame takes memory too.
const MAX_FRAMES: usize = 16;
const READ_BYTES: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex};

    /// 2^60 bytes, in a long frame: 73 bytes with the greeting.
    const HUGE: [u8; 9] = [LONG, 0x10, 0, 0, 0, 0, 0, 0, 0];

    async fn pair(one: Socket, other: Socket) -> [Peer<DuplexStream>; 2] {
        // Enough for a greeting, since both sides send at once; longer messages arrive in pieces.
        let (a, b) = duplex(100);
        let (a, b) = tokio::join!(Peer::meet(a, one, 1 << 20), Peer::meet(b, other, 1 << 20));
        [a.unwrap(), b.unwrap()]
    }

    /// Performs the handshake with a peer that sends these bytes, and returns what it receives next.
    async fn after(bytes: &[u8], socket: Socket) -> Result<Received, Error> {
        let stream = tokio::io::join(bytes, tokio::io::sink());
        Peer::meet(stream, socket, 1 << 20).await?.receive().await
    }

    fn ready(socket: &str) -> Vec<u8> {
        let body = [
            b"\x05READY\x0bSocket-TYPE\0\0\0".as_slice(),
            &[socket.len() as u8],
            socket.as_bytes(),
        ];
        let body = body.concat();
        [&GREETING, [COMMAND, body.len() as u8].as_slice(), &body].concat()
    }

    #[tokio::test]
    async fn what_is_announced_is_not_reserved_before_or_after_the_handshake() {
        for (socket, name) in [
            (Socket::Pub, "SUB"),
            (Socket::Sub, "PUB"),
            (Socket::Router, "REQ"),
            (Socket::Dealer, "ROUTER"),
        ] {
            for before in [GREETING.to_vec(), ready(name)] {
                for flags in [LONG, LONG | COMMAND] {
                    let mut bytes = [&before[..], &HUGE].concat();
                    bytes[before.len()] = flags;
                    let error = after(&bytes, socket).await.unwrap_err();
                    assert!(
                        matches!(error, Error::TooLong { bytes, .. } if bytes == 1 << 60),
                        "{error}"
                    );
                }
            }
        }
        // The same without a limit: only received bytes take memory.
        let bytes = [&ready("PUB")[..], &HUGE, b"one"].concat();
        let stream = tokio::io::join(&bytes[..], tokio::io::sink());
        let mut peer = Peer::meet(stream, Socket::Sub, usize::MAX).await.unwrap();
        assert!(matches!(peer.receive().await, Err(Error::Closed)));
        assert!(peer.body.len() == 3 && peer.body.capacity() < 1024);
    }

    #[tokio::test]
    async fn a_message_is_bounded_over_all_its_frames() {
        let frame = |length: u8, more: u8| [vec![more, length], vec![7; length.into()]].concat();
        let bytes = [ready("PUB"), frame(200, MORE), frame(56, MORE), frame(1, 0)].concat();
        let stream = tokio::io::join(&bytes[..], tokio::io::sink());
        let mut peer = Peer::meet(stream, Socket::Sub, 256).await.unwrap();
        let error = peer.receive().await.unwrap_err().to_string();
        assert_eq!(error, "the peer sends 1 bytes, more than the limit of 0");
        let empty = [MORE, 0].repeat(1 << 20);
        let error = after(&[ready("PUB"), empty].concat(), Socket::Sub).await;
        assert!(error.unwrap_err().to_string().contains("16 frames"));
    }

    #[tokio::test]
    async fn peers_are_told_apart_and_those_that_do_not_fit_are_refused() {
        let mut earlier = GREETING;
        earlier[10] = 2;
        let mut plain = GREETING;
        plain[12..17].copy_from_slice(b"PLAIN");
        let http =
            b"GET / HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\nuser-agent: curl/8.5.0\r\n\r\n";
        for (bytes, words) in [
            (&http[..], "another signature"),
            (&earlier, "an earlier version"),
            (&plain, "another mechanism"),
            (&GREETING[..63], "closed the connection"),
            (&[&GREETING[..], b"\0\x01x"].concat(), "READY must follow"),
            (&[&GREETING[..], b"\x04\0"].concat(), "READY must follow"),
            (&[&GREETING[..], b"\x04\x09\x08"].concat(), "closed"),
            (&[&GREETING[..], b"\x05\x01x"].concat(), "flags"),
            (&[&GREETING[..], b"\x08\x01x"].concat(), "flags"),
            (&ready("PULL"), "must be SUB or XSUB"),
            (&ready("or"), "must be SUB or XSUB"),
            (&ready(""), "must be SUB or XSUB"),
        ] {
            let error = after(bytes, Socket::Pub).await.unwrap_err().to_string();
            assert!(error.contains(words), "{error} lacks {words}");
        }
    }

    #[tokio::test]
    async fn subscriptions_come_in_the_forms_of_both_versions() {
        let [mut publisher, mut subscriber] = pair(Socket::Pub, Socket::Sub).await;
        let subscribe = async {
            subscriber.subscribe(b"kv").await.unwrap();
            subscriber.write(COMMAND, b"\x09SUBSCRIBE");
            subscriber.write(COMMAND, b"\x06CANCELkv");
            subscriber.send(&[b"\0"]).await.unwrap();
        };
        let hear = async {
            let mut heard = Vec::new();
            for _ in 0..4 {
                heard.push(publisher.receive().await.unwrap());
            }
            heard
        };
        let ((), heard) = tokio::join!(subscribe, hear);
        let [kv, all] = [b"kv".as_slice(), b""].map(Bytes::from_static);
        let expected = [
            Received::Subscribe(kv.clone()),
            Received::Subscribe(all.clone()),
            Received::Cancel(kv),
            Received::Cancel(all),
        ];
        assert_eq!(heard, expected);
    }

    #[tokio::test]
    async fn messages_arrive_as_they_were_sent_and_pings_are_answered_between_their_frames() {
        let [mut router, mut dealer] = pair(Socket::Router, Socket::Dealer).await;
        let long = vec![3; 70_000];
        let frames: [&[u8]; 3] = [b"", &long, &[9; 255]];
        let speak = async {
            dealer.write(MORE, frames[0]);
            dealer.write(COMMAND, b"\x04PING\0\x0ahello");
            dealer.send(&frames[1..]).await.unwrap();
            // The reply, and the other side's message.
            let (flags, body) = dealer.frame().await.unwrap();
            assert_eq!((flags, &body[..]), (COMMAND, &b"\x04PONGhello"[..]));
            dealer.receive().await.unwrap()
        };
        let hear = async {
            let heard = router.receive().await.unwrap();
            router.send(&[b"yes"]).await.unwrap();
            heard
        };
        let (answer, heard) = tokio::join!(speak, hear);
        let expected = frames.map(Bytes::copy_from_slice).to_vec();
        assert_eq!(heard, Received::Message(expected));
        let yes = Bytes::from_static(b"yes");
        assert_eq!(answer, Received::Message(vec![yes]));
    }

    #[tokio::test]
    async fn a_receive_that_is_dropped_halfway_loses_nothing() {
        let [mut router, mut dealer] = pair(Socket::Router, Socket::Dealer).await;
        let long = vec![3; 1000];
        let sending = async { dealer.send(&[&long, b"end"]).await.unwrap() };
        let hearing = async {
            loop {
                tokio::select! {
                    biased;
                    heard = router.receive() => return heard.unwrap(),
                    () = tokio::task::yield_now() => {}
                }
            }
        };
        let ((), heard) = tokio::join!(sending, hearing);
        let end = Bytes::from_static(b"end");
        assert_eq!(heard, Received::Message(vec![long.into(), end]));
    }
}
