//! An upstream that records the requests it receives and responds by a script.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::http::{Headers, READ_LIMIT, find, read_chunk, read_head, write_chunk};
use crate::wait::pause;

/// A listening upstream. It accepts no more connections once it is dropped.
pub struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    script: Script,
    /// The received requests; `None` if they are not recorded.
    received: Option<Mutex<Vec<Received>>>,
    stopping: AtomicBool,
    /// Open connections by number; they are closed when the upstream stops.
    open: Mutex<HashMap<u64, TcpStream>>,
    accepted: AtomicU64,
}

type Script = Box<dyn Fn(&Received, &mut Reply<'_>) -> Result<()> + Send + Sync>;

/// A request as received.
#[derive(Debug, Clone)]
pub struct Received {
    /// The request line as the gateway sent it.
    pub line: String,
    /// Header names in lower case with their values, in order.
    pub headers: Headers,
    /// The body's bytes, without the framing of chunks.
    pub body: Vec<u8>,
}

impl Received {
    /// Returns the first header with this lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Upstream {
    /// Starts an upstream that responds to every request with a small JSON object.
    pub fn start() -> Result<Self> {
        Self::scripted(|_, reply| reply.json(200, r#"{"ok": true}"#))
    }

    /// Starts an upstream with this script, which runs after the request was recorded. The connection is closed if the
    /// script fails or leaves a response unfinished.
    pub fn scripted(
        script: impl Fn(&Received, &mut Reply<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::listen(Box::new(script), Some(Mutex::default()))
    }

    /// Starts an upstream like [`Self::start`] that records no requests, for load tests.
    pub fn forgetful() -> Result<Self> {
        Self::listen(
            Box::new(|_, reply| reply.json(200, r#"{"ok": true}"#)),
            None,
        )
    }

    /// Starts an upstream like [`Self::scripted`] that records no requests.
    pub fn scripted_forgetful(
        script: impl Fn(&Received, &mut Reply<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::listen(Box::new(script), None)
    }

    fn listen(script: Script, received: Option<Mutex<Vec<Received>>>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script,
            received,
            stopping: AtomicBool::new(false),
            open: Mutex::default(),
            accepted: AtomicU64::new(0),
        });
        let accepting = Some(accept(listener, &shared));
        Ok(Self {
            address,
            shared,
            accepting,
        })
    }

    /// Stops as if the process had been killed, and restarts on the same address. Meanwhile connections are refused,
    /// and open ones are closed.
    pub fn restart(&mut self) -> Result<()> {
        self.stop();
        let deadline = Instant::now() + READ_LIMIT;
        let listener = loop {
            match TcpListener::bind(self.address) {
                Ok(listener) => break listener,
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => pause(),
            }
        };
        self.shared.stopping.store(false, Ordering::Relaxed);
        self.accepting = Some(accept(listener, &self.shared));
        Ok(())
    }

    fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        // This connection wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for stream in self.shared.open().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Returns the address on which the upstream listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns all requests received so far.
    pub fn received(&self) -> Vec<Received> {
        let received = self.shared.received.as_ref();
        received.map_or_else(Vec::new, |list| {
            list.lock().unwrap_or_else(PoisonError::into_inner).clone()
        })
    }

    /// Returns the last request received.
    pub fn last(&self) -> Result<Received> {
        self.received()
            .pop()
            .context("the upstream received nothing")
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept(listener: TcpListener, shared: &Arc<Shared>) -> JoinHandle<()> {
    let accepting = Arc::clone(shared);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if accepting.stopping.load(Ordering::Relaxed) {
                return;
            }
            let shared = Arc::clone(&accepting);
            let number = shared.accepted.fetch_add(1, Ordering::Relaxed);
            // The thread ends with its connection, at the latest when the gateway stops.
            std::thread::spawn(move || {
                if let Ok(open) = stream.try_clone() {
                    shared.open().insert(number, open);
                    // The connection may have been closed before it was registered here.
                    if !shared.stopping.load(Ordering::Relaxed) {
                        shared.serve(stream);
                    }
                    shared.open().remove(&number);
                }
            });
        }
    })
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a connection until it closes or the script ends it.
    fn serve(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let Ok(writing) = stream.try_clone() else {
            return;
        };
        let mut reading = BufReader::with_capacity(64 << 10, stream);
        while let Ok(Some(request)) = read_request(&mut reading) {
            if let Some(received) = &self.received {
                received
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(request.clone());
            }
            let mut reply = Reply {
                stream: &writing,
                finished: false,
            };
            if (self.script)(&request, &mut reply).is_err() || !reply.finished {
                return;
            }
        }
    }
}

fn read_request(stream: &mut impl BufRead) -> Result<Option<Received>> {
    let Some((line, headers)) = read_head(stream)? else {
        return Ok(None);
    };
    let mut body = Vec::new();
    if find(&headers, "transfer-encoding") == Some("chunked") {
        while let Some(chunk) = read_chunk(stream)? {
            body.extend(chunk);
        }
    } else if let Some(length) = find(&headers, "content-length") {
        body.resize(length.parse()?, 0);
        stream.read_exact(&mut body)?;
    }
    Ok(Some(Received {
        line,
        headers,
        body,
    }))
}

/// Writes the response to one request.
pub struct Reply<'a> {
    stream: &'a TcpStream,
    finished: bool,
}

impl Reply<'_> {
    /// Sends a whole JSON response.
    pub fn json(&mut self, status: u16, body: &str) -> Result<()> {
        let head = format!(
            "HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.raw(&[head.as_bytes(), body.as_bytes()].concat())?;
        self.finished = true;
        Ok(())
    }

    /// Sends the head of a stream of server-sent events.
    pub fn begin_events(&mut self) -> Result<()> {
        self.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    }

    /// Sends one event immediately, in its own chunk.
    pub fn event(&mut self, data: &str) -> Result<()> {
        self.piece(format!("data: {data}\n\n").as_bytes())
    }

    /// Sends a piece of the stream immediately, in its own chunk.
    pub fn piece(&mut self, bytes: &[u8]) -> Result<()> {
        let mut chunk = Vec::new();
        write_chunk(&mut chunk, bytes);
        self.raw(&chunk)
    }

    /// Sends the end of the stream.
    pub fn end_events(&mut self) -> Result<()> {
        self.raw(b"0\r\n\r\n")?;
        self.finished = true;
        Ok(())
    }

    /// Sends bytes unchanged. The connection is closed after the script unless a response was finished.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        let mut stream = self.stream;
        stream.write_all(bytes).context("the gateway has gone")
    }
}
