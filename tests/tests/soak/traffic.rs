//! What clients do, and how the upstream answers and checks.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use anyhow::{Context, Result, ensure};
use foreword_ordering::random::Random;
use foreword_tests::http::{Client as Connection, Response, post_chunked, post_head, post_with};
use foreword_tests::{Received, Reply, Upstream};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::ledger::{End, Expected, Ledger};

pub(crate) const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Returns the salt that the gateway must derive. Computed independently here, so that a change shows.
fn salt(tenant: &str) -> String {
    let key: Vec<u8> = (0..32).collect();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(b"foreword cache salt 1\0");
    mac.update(&(tenant.len() as u64).to_be_bytes());
    mac.update(tenant.as_bytes());
    let bytes = mac.finalize().into_bytes();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where the gateway listens at present; nowhere while it is being restarted.
#[derive(Default)]
pub(crate) struct Door {
    address: Mutex<Option<SocketAddr>>,
    has_opened: Condvar,
}

impl Door {
    pub(crate) fn open(&self, address: SocketAddr) {
        *self.address.lock().unwrap() = Some(address);
        self.has_opened.notify_all();
    }

    pub(crate) fn close(&self) {
        *self.address.lock().unwrap() = None;
    }

    fn wait(&self) -> SocketAddr {
        let mut address = self.address.lock().unwrap();
        loop {
            match *address {
                Some(address) => return address,
                None => address = self.has_opened.wait(address).unwrap(),
            }
        }
    }
}

/// One client, on a connection that it keeps as long as possible.
pub(crate) struct Client {
    dice: Random,
    tenant: String,
    /// Id of the next request; no two clients share one.
    next: u64,
    door: Arc<Door>,
    ledger: Arc<Ledger>,
    connection: Option<Connection>,
}

impl Client {
    pub(crate) fn new(number: u64, seed: u64, door: &Arc<Door>, ledger: &Arc<Ledger>) -> Self {
        Self {
            dice: Random::new(seed << 8 | number),
            tenant: format!("tenant-{}", number % 3),
            next: number << 32,
            door: Arc::clone(door),
            ledger: Arc::clone(ledger),
            connection: None,
        }
    }

    /// Sends one request of some kind and follows it to its end.
    pub(crate) fn act(&mut self) {
        self.next += 1;
        let id = self.next;
        let kind = self.dice.below(100);
        let large = kind >= 97;
        let fate = match self.dice.below(20) {
            0..=2 => "events",
            3 => "hang-up",
            4 => "break-off",
            _ => "answer",
        };
        let body = self.body(large);
        let headers = [
            "content-type: application/json".to_owned(),
            format!("x-tenant: {}", self.tenant),
            format!("x-soak-id: {id}"),
            format!("x-soak-fate: {fate}"),
        ];
        let mut headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let expected = Expected {
            body: body.clone(),
            salt: salt(&self.tenant),
        };
        self.ledger.expect(id, expected);
        let end = match kind {
            0..=4 => self.leave(&headers, &body, true),
            5..=9 => self.leave(&headers, &body, false),
            10..=14 => self.trickle(&headers, &body),
            15..=19 => {
                let chunk = 1 + self.dice.below(4_000) as usize;
                let request = post_chunked(&headers, body.as_bytes(), chunk, &["x-trailer: 1"]);
                self.exchange(&request, fate)
            }
            20..=24 => {
                // A truncated body is not JSON and is refused, because it could contain a salt.
                let half = &body.as_bytes()[..body.len() / 2];
                self.exchange(&post_with(&headers, half), fate)
            }
            25..=29 => {
                headers.push("x-raw: 1");
                self.exchange(&post_with(&headers, body.as_bytes()), fate)
            }
            _ => self.exchange(&post_with(&headers, body.as_bytes()), fate),
        };
        self.ledger.end(id, end);
    }

    /// Returns a body of 15 documents of about 1 KB, or of 5 documents that make 2 MB, from a pool that requests share.
    fn body(&mut self, large: bool) -> String {
        let (count, bytes) = if large { (5, 400_000) } else { (15, 1_000) };
        let documents = (0..count).map(|_| {
            let name = self.dice.below(60);
            // Repeated documents would be dropped, as they should be.
            let serial = self.dice.below(1 << 40);
            let name = if self.dice.below(3) == 0 {
                format!("d{name}-{serial}")
            } else {
                format!("d{name}")
            };
            let words = format!("{name} é \\u00e9 \\\" ").repeat(bytes / 20);
            (
                name.clone(),
                format!(r#"<document id=\"{name}\">{words}</document>"#),
            )
        });
        let mut documents: Vec<_> = documents.collect();
        documents.sort();
        documents.dedup_by(|left, right| left.0 == right.0);
        self.dice.shuffle(&mut documents);
        let documents: Vec<_> = documents.into_iter().map(|(_, text)| text).collect();
        let salt = if self.dice.below(4) == 0 {
            r#""cache_salt": "mine", "#
        } else {
            ""
        };
        format!(
            "{{ {salt}\"model\": \"m\", \"seed\": 1e400, \"messages\": [{{\"role\": \"user\", \"content\": \
             \"{}\\nWhy {}?\"}}], \"z\": -0.0 }}",
            documents.join("\\n"),
            self.dice.below(1_000_000)
        )
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        if self.connection.is_none() {
            self.connection = Connection::connect(self.door.wait()).ok();
        }
        self.connection.as_mut()
    }

    fn exchange(&mut self, request: &[u8], fate: &str) -> End {
        let answered = self.connection().map(|connection| {
            // A refusal may come before everything is sent.
            let _ = connection.send(request);
            connection.head().and_then(|head| read(connection, head))
        });
        self.ended(answered, fate)
    }

    /// Returns how a request ended. A connection that broke, or will be closed, is given up.
    fn ended(&mut self, answered: Option<Result<Response>>, fate: &str) -> End {
        let Some(Ok(response)) = answered else {
            self.connection = None;
            return End::Failed;
        };
        if response.header("connection") == Some("close") {
            self.connection = None;
        }
        match response.status {
            200 => {
                let body = String::from_utf8_lossy(&response.body).into_owned();
                if body != answer(fate) {
                    self.ledger
                        .fault(format!("the answer {fate} arrived as {body:?}"));
                }
                End::Answered
            }
            400 | 413 => {
                self.connection = None;
                End::Refused
            }
            502..=504 => End::Failed,
            status => {
                self.ledger.fault(format!(
                    "{status}: {:?}",
                    String::from_utf8_lossy(&response.body)
                ));
                End::Failed
            }
        }
    }

    /// Sends the body a few bytes at a time.
    fn trickle(&mut self, headers: &[&str], body: &str) -> End {
        let request = post_with(headers, body.as_bytes());
        let piece = 64 + request.len() / 200;
        let answered = self.connection().map(|connection| {
            for piece in request.chunks(piece) {
                connection.send(piece)?;
                thread::yield_now();
            }
            let head = connection.head()?;
            read(connection, head)
        });
        let fate = headers
            .iter()
            .find_map(|header| header.strip_prefix("x-soak-fate: "));
        self.ended(answered, fate.unwrap_or_default())
    }

    /// Leaves in mid-body, or once everything is sent.
    fn leave(&mut self, headers: &[&str], body: &str, in_mid_body: bool) -> End {
        self.connection = None;
        let mut request = post_head(headers);
        request.extend(format!("content-length: {}\r\n\r\n", body.len()).bytes());
        let sent = if in_mid_body {
            body.len() / 2
        } else {
            body.len()
        };
        request.extend(&body.as_bytes()[..sent]);
        if let Some(mut connection) = self
            .connection()
            .is_some()
            .then(|| self.connection.take())
            .flatten()
        {
            let _ = connection.send(&request);
        }
        if in_mid_body { End::Unsent } else { End::Left }
    }
}

fn read(connection: &mut Connection, mut head: Response) -> Result<Response> {
    while let Some(piece) = connection.piece(&head)? {
        head.body.extend(piece);
    }
    Ok(head)
}

/// Returns the upstream's answer as the client must read it.
fn answer(fate: &str) -> String {
    match fate {
        "events" => (0..20)
            .map(|number| format!("data: {{\"n\": {number}}}\n\n"))
            .collect(),
        _ => r#"{"ok": true}"#.to_owned(),
    }
}

/// Starts an upstream that compares what it receives with what was sent, and then does what the request's fate says.
pub(crate) fn upstream(ledger: &Arc<Ledger>) -> Result<Upstream> {
    let ledger = Arc::clone(ledger);
    Upstream::scripted_forgetful(move |request, reply| {
        let id = request.header("x-soak-id").and_then(|id| id.parse().ok());
        let id = id.context("a request without an id")?;
        if let Some(expected) = ledger.arrived(id)
            && let Err(fault) = compare(request, &expected)
        {
            ledger.fault(format!("request {id:x}: {fault:#}"));
        }
        act(request.header("x-soak-fate").unwrap_or_default(), reply)
    })
}

fn act(fate: &str, reply: &mut Reply<'_>) -> Result<()> {
    match fate {
        "hang-up" => Ok(()),
        "break-off" => {
            reply.begin_events()?;
            reply.event("half")
        }
        "events" => {
            reply.begin_events()?;
            for number in 0..20 {
                reply.event(&format!("{{\"n\": {number}}}"))?;
                thread::yield_now();
            }
            reply.end_events()
        }
        _ => reply.json(200, &answer(fate)),
    }
}

/// Checks that the documents are the client's, each as often as sent, and that every byte outside them is unchanged.
fn compare(request: &Received, expected: &Expected) -> Result<()> {
    let body = std::str::from_utf8(&request.body)?;
    if let Some(length) = request.header("content-length") {
        ensure!(
            length == body.len().to_string(),
            "content-length {length} for {} bytes",
            body.len()
        );
    }
    ensure!(
        request.header("x-raw").is_none(),
        "the bypass header came through"
    );
    let ours = format!("\"cache_salt\": \"{}\"", expected.salt);
    let wanted = if expected.body.contains("cache_salt") {
        expected.body.replacen(r#""cache_salt": "mine""#, &ours, 1)
    } else {
        let written = ours.replacen(": ", ":", 1);
        expected.body.replacen('{', &format!("{{{written},"), 1)
    };
    let (mut documents, rest) = taken_apart(body);
    let (mut sent, untouched) = taken_apart(&wanted);
    ensure!(rest == untouched, "bytes outside the documents changed");
    documents.sort_unstable();
    sent.sort_unstable();
    ensure!(
        documents == sent,
        "{} documents became {}",
        sent.len(),
        documents.len()
    );
    Ok(())
}

/// Splits a body into documents and the text around them.
fn taken_apart(body: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut documents, mut rest) = (Vec::new(), Vec::new());
    let mut left = body;
    while let Some(start) = left.find("<document ") {
        let end = left[start..]
            .find("</document>")
            .map_or(left.len(), |end| start + end + 11);
        rest.push(&left[..start]);
        documents.push(&left[start..end]);
        left = &left[end..];
    }
    rest.push(left);
    (documents, rest)
}
