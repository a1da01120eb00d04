//! A raw HTTP/1.1 client, so that a test controls every byte that it sends and sees every byte that it receives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// Header names in lower case with their values, in order.
pub type Headers = Vec<(String, String)>;

/// One keep-alive connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects to `address`.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let stream =
            TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_LIMIT))?;
        stream.set_write_timeout(Some(READ_LIMIT))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends bytes unchanged.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream
            .get_mut()
            .write_all(bytes)
            .context("cannot send")
    }

    /// Reads a response with its body; not for a `HEAD` request.
    pub fn response(&mut self) -> Result<Response> {
        let mut response = self.head()?;
        while let Some(piece) = self.piece(&response)? {
            response.body.extend(piece);
        }
        Ok(response)
    }

    /// Reads a response's status and headers.
    pub fn head(&mut self) -> Result<Response> {
        let (first, headers) = read_head(&mut self.stream)?.context("closed before a response")?;
        let status = first
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Ok(Response {
            status: status.with_context(|| format!("not a status line: {first:?}"))?,
            headers,
            body: Vec::new(),
        })
    }

    /// Reads the next piece of a response's body: a chunk as sent, or the whole body if it has a length. Returns `None`
    /// at the end.
    pub fn piece(&mut self, head: &Response) -> Result<Option<Vec<u8>>> {
        if head.header("transfer-encoding") == Some("chunked") {
            return read_chunk(&mut self.stream);
        }
        let length: usize = match head.header("content-length") {
            Some(length) => length.parse()?,
            None if matches!(head.status, 100..200 | 204 | 304) => 0,
            None => {
                bail!("a body without length; the harness reads none until the connection closes")
            }
        };
        if length == 0 || !head.body.is_empty() {
            return Ok(None);
        }
        let mut body = vec![0; length];
        self.stream
            .read_exact(&mut body)
            .context("the body ends early")?;
        Ok(Some(body))
    }

    /// Waits until the peer sends data or closes the connection. Returns whether it closed it.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.fill_buf(), Ok([]) | Err(_))
    }
}

/// A response; `body` is filled by [`Client::response`].
#[derive(Debug, Clone)]
pub struct Response {
    /// Status code of the response.
    pub status: u16,
    /// Header names in lower case with their values, in order.
    pub headers: Headers,
    /// The body without its framing.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the first header with this lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Returns the filter's report header; empty if absent.
    pub fn report(&self) -> &str {
        self.header("x-foreword").unwrap_or_default()
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("not JSON: {:?}", String::from_utf8_lossy(&self.body)))
    }
}

/// Sends one request on a new connection and returns the response.
pub fn exchange(address: SocketAddr, request: &[u8]) -> Result<Response> {
    let mut client = Client::connect(address)?;
    if let Err(error) = client.send(request) {
        // A server may answer and close before it has read everything.
        let status = client.response().map(|response| response.status);
        return Err(error.context(format!("the answer before that: {status:?}")));
    }
    client.response()
}

/// Returns a JSON `POST` to the chat route with a `content-length`.
pub fn post(body: &[u8]) -> Vec<u8> {
    post_with(&["content-type: application/json"], body)
}

/// Returns a `POST` to the chat route with these header lines and a `content-length`.
pub fn post_with(headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut request = post_head(headers);
    request.extend(format!("content-length: {}\r\n\r\n", body.len()).bytes());
    request.extend(body);
    request
}

/// Returns a `POST` to the chat route in chunks of at most `chunk` bytes, ended by trailer lines.
pub fn post_chunked(headers: &[&str], body: &[u8], chunk: usize, trailers: &[&str]) -> Vec<u8> {
    let mut request = post_head(headers);
    request.extend(b"transfer-encoding: chunked\r\n\r\n");
    for piece in body.chunks(chunk) {
        write_chunk(&mut request, piece);
    }
    request.extend(b"0\r\n");
    for trailer in trailers {
        request.extend(format!("{trailer}\r\n").bytes());
    }
    request.extend(b"\r\n");
    request
}

/// Returns the request line and header lines of a `POST` to the chat route, without the empty line.
pub fn post_head(headers: &[&str]) -> Vec<u8> {
    let mut head = String::from("POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n");
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head.into_bytes()
}

/// Appends one chunk to `out`.
pub(crate) fn write_chunk(out: &mut Vec<u8>, piece: &[u8]) {
    out.extend(format!("{:x}\r\n", piece.len()).bytes());
    out.extend(piece);
    out.extend(b"\r\n");
}

/// Reads the first line and the headers. Returns `None` if the connection was closed before the first byte.
pub(crate) fn read_head(stream: &mut impl BufRead) -> Result<Option<(String, Headers)>> {
    let mut first = String::new();
    if stream.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    Ok(Some((first.trim_end().to_owned(), read_headers(stream)?)))
}

fn read_headers(stream: &mut impl BufRead) -> Result<Headers> {
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        ensure!(stream.read_line(&mut line)? > 0, "closed within headers");
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(headers);
        }
        let (name, value) = line
            .split_once(':')
            .with_context(|| format!("not a header: {line:?}"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

/// Reads one chunk. Returns `None` for the last one, whose trailers are discarded.
pub(crate) fn read_chunk(stream: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut size = String::new();
    stream.read_line(&mut size)?;
    let size = usize::from_str_radix(size.trim_end(), 16)
        .with_context(|| format!("not a chunk size: {size:?}"))?;
    if size == 0 {
        read_headers(stream)?;
        return Ok(None);
    }
    let mut chunk = vec![0; size + 2];
    stream
        .read_exact(&mut chunk)
        .context("the chunk ends early")?;
    ensure!(chunk.ends_with(b"\r\n"), "a chunk without its line end");
    chunk.truncate(size);
    Ok(Some(chunk))
}

pub(crate) fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.as_str())
}

/// Time limit for a test that hangs; correct tests are far faster.
pub(crate) const READ_LIMIT: Duration = Duration::from_secs(60);
