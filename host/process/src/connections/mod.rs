//! Serves a listener's connections with hyper, with limits on their number, time, speed and memory.
//!
//! ```text
//!   accept ──▶ book: is there a place? ──▶ task: hyper's HTTP/1 connection, and a clock
//!     │ EMFILE: log, pause                  head ──▶ busy ──▶ idle ──▶ head …
//!     │                                       └ arriving ┘ while a body is read
//!     └── no place: closes the connection that waits longest for a head, else the longest idle one, else that
//!         whose body has been arriving longest; never one that is being answered
//! ```
//!
//! So clients that hold places without using them take them only from each other. Hyper's time-out for heads also runs
//! between two requests, so one value would have to serve for both; the place's clock has a limit for each, and also
//! ends connections whose clients do not read their responses.

mod book;
mod files;
mod stream;

pub use book::{Arriving, Book, Bounds, Busy, Connection, Counts};
pub use files::within_open_files;
pub use stream::WatchedStream;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use book::{Full, Place};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A bound listener, its routes, and the book of its connections.
pub struct Listening {
    /// The bound socket.
    pub listener: TcpListener,
    /// The routes served.
    pub router: Router,
    /// The book of the listener's connections.
    pub book: Arc<Book>,
}

/// A server whose connections end when it closes.
pub trait Closing: Send + Sync + 'static {
    /// Completes when the server has closed.
    fn closed(&self) -> impl Future<Output = ()> + Send;
}

/// A server that closes only when the future that serves it is dropped.
#[derive(Clone, Copy, Debug)]
pub struct NeverClosing;

impl Closing for NeverClosing {
    async fn closed(&self) {
        std::future::pending::<()>().await;
    }
}

/// Serves each listener in its own task; see [`serve`].
pub fn serve_all(
    listening: impl IntoIterator<Item = Listening>,
    closing: &Arc<impl Closing>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for listening in listening {
        tasks.spawn(serve(listening, Arc::clone(closing)));
    }
    tasks
}

/// Serves HTTP until the server closes and its last connection has ended. Dropping the future ends all connections.
pub async fn serve(listening: Listening, closing: Arc<impl Closing>) {
    let service = TowerToHyperService::new(listening.router);
    let answer = {
        let closing = Arc::clone(&closing);
        move |stream, connection| drive(stream, connection, service.clone(), Arc::clone(&closing))
    };
    accept_each(listening.listener, listening.book, closing, answer).await;
}

/// Accepts connections until the server closes, then waits for the last one to end. `work` serves an admitted
/// connection; its future is dropped if a deadline passes or the connection is closed for another.
pub async fn accept_each<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    book: Arc<Book>,
    closing: Arc<impl Closing>,
    work: impl Fn(WatchedStream, Connection) -> F,
) {
    let mut tasks = JoinSet::new();
    {
        let mut closed = pin!(closing.closed());
        let mut trouble = Trouble::default();
        'accepting: loop {
            while tasks.try_join_next().is_some() {}
            // A closed connection holds its file until its task has ended.
            while tasks.len() > book.places() {
                tokio::select! {
                    biased;
                    () = &mut closed => break 'accepting,
                    _ = tasks.join_next() => {}
                }
            }
            let accepted = tokio::select! {
                biased;
                () = &mut closed => break,
                accepted = accept(&listener, &book, &mut trouble) => accepted,
            };
            let Some((stream, place)) = accepted else {
                continue;
            };
            let connection = place.connection();
            let stream = WatchedStream::new(stream, connection.clone());
            let work = work(stream, connection);
            tasks.spawn(async move { place.serve_until_closed(work).await });
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

/// Waits for a connection and admits it; `None` if it was refused or accepting failed.
async fn accept(
    listener: &TcpListener,
    book: &Arc<Book>,
    trouble: &mut Trouble,
) -> Option<(TcpStream, Place)> {
    book.room().await;
    let accepted = poll_fn(|context| {
        let accepted = listener.poll_accept(context);
        // `accept4` allocates a file descriptor before it looks for a client, so without a free one it fails even if no
        // client waits. Any result but an error shows that accepting works again.
        if !matches!(accepted, Poll::Ready(Err(_))) {
            trouble.is_over(book);
        }
        accepted
    })
    .await;
    let (stream, peer) = match accepted {
        Ok(accepted) => accepted,
        Err(error) => {
            trouble.wait(&error, book).await;
            return None;
        }
    };
    // Without Nagle's algorithm, a token is sent before the previous one is acknowledged.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY not set");
    }
    if let Err(error) = keep_alive(&stream) {
        tracing::debug!(%error, "TCP keepalive not set");
    }
    loop {
        match book.admit(peer.ip()) {
            Ok(place) => return Some((stream, place)),
            // The connection that could have been closed became busy meanwhile.
            Err(Full::Everywhere) => book.room().await,
            Err(Full::Address) => return None,
        }
    }
}

/// Enables TCP keep-alive: the system closes a connection if the peer has been silent for 60 seconds and then does not
/// answer three probes in 30 seconds. So connections of failed machines free their places.
///
/// # Errors
/// Returns the system's error.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

/// Repeated failures to accept connections, such as too many open files.
#[derive(Default)]
struct Trouble {
    /// Length of the last pause after a failure; zero while there is no trouble.
    pause: Duration,
    /// Time of the last log line, and the number of failures since then.
    logged: Option<(Instant, u64)>,
}

impl Trouble {
    async fn wait(&mut self, error: &io::Error, book: &Book) {
        // If the client disconnected before it was accepted, nothing has failed.
        use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
        let harmless = [
            ConnectionAborted,
            ConnectionReset,
            ConnectionRefused,
            Interrupted,
        ];
        if harmless.contains(&error.kind()) {
            return;
        }
        book.failed();
        let failures = self.logged.map_or(0, |(_, failures)| failures) + 1;
        let is_due = (self.logged).is_none_or(|(when, _)| when.elapsed() >= LOG_EVERY);
        self.logged = if is_due {
            tracing::error!(
                %error, listener = book.name(), failures,
                "connections cannot be accepted; the longest waiting one is closed, and it is tried again"
            );
            Some((Instant::now(), 0))
        } else {
            self.logged.map(|(when, _)| (when, failures))
        };
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        // An idle connection may hold the resource that is lacking.
        book.evict_one();
        tokio::time::sleep(self.pause).await;
    }

    fn is_over(&mut self, book: &Book) {
        if self.pause > Duration::ZERO {
            self.pause = Duration::ZERO;
            self.logged = None;
            book.recovered();
            tracing::info!(listener = book.name(), "connections are accepted again");
        }
    }
}

/// Serves HTTP on one connection until it ends.
async fn drive(
    stream: WatchedStream,
    connection: Connection,
    router: TowerToHyperService<Router>,
    closing: Arc<impl Closing>,
) {
    let service = service_fn(|mut request: Request<Incoming>| {
        let busy = connection.busy();
        request.extensions_mut().insert(connection.clone());
        let answer = router.call(request);
        async move {
            let response: Response = answer.await?;
            // The connection is busy until the response's body is dropped.
            let held = move |error: axum::Error| {
                let _busy = &busy;
                error
            };
            Ok::<_, Infallible>(response.map(|body| Body::new(body.map_err(held))))
        }
    });
    let mut http = pin!(
        http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            // The place's clock limits this time.
            .header_read_timeout(None)
            .serve_connection(TokioIo::new(stream), service)
    );
    let mut closed = pin!(closing.closed());
    let mut is_closing = false;
    loop {
        tokio::select! {
            biased;
            outcome = &mut http => {
                if let Err(error) = outcome {
                    tracing::debug!(%error, "a connection has ended");
                }
                return;
            }
            () = &mut closed, if !is_closing => {
                http.as_mut().graceful_shutdown();
                is_closing = true;
            }
        }
    }
}

/// Longest head of a request, in bytes, which is also the size of a connection's buffer; twice Envoy's default.
const MAX_HEAD_BYTES: usize = 128 << 10;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const LOG_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    /// Too many open files: EMFILE.
    fn no_file() -> io::Error {
        io::Error::from_raw_os_error(24)
    }

    #[tokio::test(start_paused = true)]
    async fn accepting_that_fails_is_told_makes_room_and_is_tried_more_and_more_seldom() {
        let book = Book::new("public", Bounds::default(), Counts::default());
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let _waiting: Vec<Place> = (0..9).map(|_| book.admit(address).unwrap()).collect();
        let mut trouble = Trouble::default();
        // A client that disconnected early is not a failure.
        let gone = io::Error::from(io::ErrorKind::ConnectionAborted);
        trouble.wait(&gone, &book).await;
        assert!(!book.is_exhausted(Duration::MAX) && trouble.logged.is_none());
        let mut pauses = Vec::new();
        for failures in 0..7 {
            let before = Instant::now();
            trouble.wait(&no_file(), &book).await;
            pauses.push(before.elapsed().as_millis());
            // Logged only occasionally, but always visible to probes.
            assert_eq!(trouble.logged.unwrap().1, failures);
            assert!(book.is_exhausted(Duration::MAX));
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(book.connections(), 2);
        trouble.is_over(&book);
        assert!(!book.is_exhausted(Duration::ZERO));
        assert_eq!(trouble.pause, Duration::ZERO);
    }

    #[tokio::test]
    async fn accepting_works_again_before_the_next_client_comes() {
        let book = Book::new("public", Bounds::default(), Counts::default());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut trouble = Trouble::default();
        trouble.wait(&no_file(), &book).await;
        assert!(book.is_exhausted(Duration::MAX));
        // No client comes: a server that is not ready gets none.
        let accepted = accept(&listener, &book, &mut trouble);
        let in_time = tokio::time::timeout(Duration::from_millis(1), accepted);
        assert!(in_time.await.is_err());
        assert!(!book.is_exhausted(Duration::ZERO));
    }
}
