//! Tests of HTTPS endpoints: a trusted one is used, and an untrusted one ends the run with a helpful message.

use super::{Evaluation, error_of, figures_of, question};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns an authority that no machine trusts by default.
fn authority(name: &str) -> (Issuer<'static, KeyPair>, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (Issuer::new(params, key), pem)
}

/// An endpoint behind TLS that answers every request with the same words.
struct Endpoint {
    address: SocketAddr,
    /// Number of connections that were opened.
    connections: Arc<AtomicUsize>,
}

impl Endpoint {
    fn start(issuer: &Issuer<'static, KeyPair>, params: &CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, issuer).unwrap();
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(
                    vec![certificate.der().clone()],
                    PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
                )
                .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (config, count) = (Arc::new(config), Arc::clone(&connections));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::Relaxed);
                // A client that does not trust the endpoint leaves in the middle.
                let _ = serve(Arc::clone(&config), stream);
            }
        });
        Self {
            address,
            connections,
        }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

fn serve(config: Arc<ServerConfig>, stream: TcpStream) -> std::io::Result<()> {
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    stream.read_exact(&mut vec![0; length])?;
    let stream = stream.get_mut();
    stream.write_all(ANSWER.as_bytes())?;
    stream.conn.send_close_notify();
    stream.flush()
}

const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
data: {\"choices\": [{\"delta\": {\"content\": \"X0\"}, \"finish_reason\": \"stop\"}]}\n\n\
data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 1}}\n\n\
data: [DONE]\n\n";

/// Sends one question to an HTTPS endpoint, with the authority's certificate as the only trusted root.
fn ask(address: SocketAddr, roots: &str) -> Output {
    let evaluation = Evaluation::of(&[question(0, 0)]);
    let file = evaluation.folder.path().join("roots.pem");
    std::fs::write(&file, roots).unwrap();
    let mut command = evaluation.command_to(
        &format!("https://{address}"),
        &["--arms", "retrieval", "--json"],
    );
    command
        .env("SSL_CERT_FILE", file)
        .env_remove("SSL_CERT_DIR");
    command.output().unwrap()
}

fn for_this_machine() -> CertificateParams {
    CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap()
}

#[test]
fn an_endpoint_with_a_trusted_certificate_is_asked() {
    let (issuer, roots) = authority("known");
    let endpoint = Endpoint::start(&issuer, &for_this_machine());
    let figures = figures_of(&ask(endpoint.address, &roots));
    assert_eq!(
        figures["arms"][0]["exact_match"]["value"], 100.0,
        "{figures}"
    );
}

#[test]
fn an_unknown_authority_ends_the_run_and_the_error_says_where_to_add_it() {
    let (issuer, _) = authority("unknown");
    let (_, other_roots) = authority("known");
    let endpoint = Endpoint::start(&issuer, &for_this_machine());
    let output = ask(endpoint.address, &other_roots);
    let error = error_of(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    for words in [
        &endpoint.address.to_string(),
        "certificate",
        "SSL_CERT_FILE",
    ] {
        assert!(error.contains(words), "{words:?} is not in {error}");
    }
    assert_eq!(endpoint.connections(), 1, "it was tried again");
}

#[test]
fn a_certificate_for_another_name_or_time_is_refused_with_the_reason() {
    let (issuer, roots) = authority("known");
    let for_another = CertificateParams::new(vec!["other.example".to_owned()]).unwrap();
    let mut expired = for_this_machine();
    expired.not_before = date_time_ymd(2001, 1, 1);
    expired.not_after = date_time_ymd(2002, 1, 1);
    for (params, words) in [(for_another, "other.example"), (expired, "expired")] {
        let endpoint = Endpoint::start(&issuer, &params);
        let output = ask(endpoint.address, &roots);
        let error = error_of(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(words), "{words:?} is not in {error}");
        assert_eq!(endpoint.connections(), 1, "it was tried again");
    }
}

#[test]
fn plain_http_behind_an_https_url_is_named_so() {
    let (_, roots) = authority("known");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let output = ask(address, &roots);
    let error = error_of(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("is it http://?"), "{error}");
}
