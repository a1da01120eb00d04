//! A minimal HTTP/1.1 client: one request per connection, with responses read to their end or event by event.

use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A response's head; the rest is unread.
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    connection: BufReader<TcpStream>,
}

/// A response read to its end.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Response {
    send(address, "GET", path, &[], b"").await.read().await
}

pub(crate) async fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    post_bytes(address, path, body.to_string().as_bytes()).await
}

pub(crate) async fn post_bytes(address: SocketAddr, path: &str, body: &[u8]) -> Response {
    send(address, "POST", path, &JSON, body).await.read().await
}

/// Sends a `POST`, and returns when the head of the response has arrived.
pub(crate) async fn begin(address: SocketAddr, path: &str, body: &Value) -> Reply {
    send(address, "POST", path, &JSON, body.to_string().as_bytes()).await
}

pub(crate) const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

pub(crate) async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let mut connection = BufReader::new(connect(address).await);
    write_request(&mut connection, method, path, headers, body).await;
    read_head(connection).await
}

pub(crate) async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address)
        .await
        .expect("the server listens")
}

/// Writes a request and keeps the connection open.
pub(crate) async fn write_request(
    connection: &mut BufReader<TcpStream>,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) {
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    // One packet: the server may respond and close before a second one.
    connection
        .write_all(&[head.as_bytes(), body].concat())
        .await
        .expect("the server reads");
}

pub(crate) async fn read_head(mut connection: BufReader<TcpStream>) -> Reply {
    let status = read_line(&mut connection).await;
    let status = status
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .expect("a status line");
    let mut headers = Vec::new();
    loop {
        let line = read_line(&mut connection).await;
        let Some((name, value)) = line.split_once(": ") else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    Reply {
        status,
        headers,
        connection,
    }
}

async fn read_line(connection: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    connection.read_line(&mut line).await.expect("a line");
    line.trim_end().to_owned()
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(other, _)| other == name)
        .map(|(_, value)| value.as_str())
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// Reads the rest of the response, and closes the connection.
    pub(crate) async fn read(self) -> Response {
        self.read_on().await.0
    }

    /// Reads the rest of the response, and returns its connection for the next request.
    pub(crate) async fn read_on(mut self) -> (Response, BufReader<TcpStream>) {
        let mut body = Vec::new();
        match self
            .header("content-length")
            .map(|length| length.parse::<usize>().expect("a length"))
        {
            Some(length) => {
                body.resize(length, 0);
                self.connection
                    .read_exact(&mut body)
                    .await
                    .expect("the whole body");
            }
            None if self.status == 204 => {}
            None => {
                while let Some(chunk) = self.chunk().await {
                    body.extend(chunk);
                }
            }
        }
        (
            Response {
                status: self.status,
                headers: self.headers,
                body,
            },
            self.connection,
        )
    }

    /// Reads the next chunk of a chunked body; `None` at its proper end.
    async fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = read_line(&mut self.connection).await;
        let size = usize::from_str_radix(&size, 16).expect("the body ends with its last chunk");
        let mut chunk = vec![0; size + 2];
        self.connection
            .read_exact(&mut chunk)
            .await
            .expect("the whole chunk");
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    /// Reads the data of the next server-sent event; `None` at the end of the stream. Asserts that the server writes
    /// each event as one chunk.
    pub(crate) async fn event(&mut self) -> Option<String> {
        loop {
            let chunk = String::from_utf8(self.chunk().await?).expect("UTF-8");
            if chunk.starts_with(':') {
                continue; // a comment, sent to keep the connection alive
            }
            let event = match chunk.strip_prefix("id: ") {
                Some(rest) => rest.split_once('\n').expect("more than an id").1,
                None => &chunk,
            };
            let event = match event.strip_prefix("event: ") {
                Some(rest) => rest.split_once('\n').expect("more than a name").1,
                None => event,
            };
            let data = event
                .strip_prefix("data: ")
                .and_then(|rest| rest.strip_suffix("\n\n"));
            return Some(
                data.unwrap_or_else(|| panic!("one event, got {chunk:?}"))
                    .to_owned(),
            );
        }
    }

    /// Reads the data of the next server-sent event as JSON. Panics at the end of the stream.
    pub(crate) async fn event_json(&mut self) -> Value {
        let event = self.event().await.expect("one more event");
        serde_json::from_str(&event).unwrap_or_else(|_| panic!("JSON, got {event:?}"))
    }

    /// Reads all events to the end of the stream.
    pub(crate) async fn events(mut self) -> Vec<String> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        events
    }
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("JSON, got {:?}", self.text()))
    }

    /// Asserts an error in OpenAI's shape and returns its message.
    #[track_caller]
    pub(crate) fn error(&self, status: u16, code: &str, param: Option<&str>) -> String {
        let error = &self.json()["error"];
        assert_eq!(
            (self.status, error["code"].as_str(), error["param"].as_str()),
            (status, Some(code), param),
            "{error}"
        );
        assert!(error["type"].is_string(), "{error}");
        error["message"].as_str().expect("a message").to_owned()
    }
}
