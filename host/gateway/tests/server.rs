//! Tests the server through a gateway's client: listeners, certificates, limits, health, and shutdown.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
};
use foreword_gateway::processor::{Bounds, Processor};
use foreword_gateway::server::{Options, Place, Server, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// A server that runs until it is stopped.
struct Running {
    place: Place,
    internal: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<anyhow::Result<bool>>,
}

fn anywhere() -> Place {
    Place::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

async fn start(listen: Place, tls: Option<Tls>, bounds: Bounds) -> Running {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{}").unwrap();
    let processor = Processor::load(file.path(), BTreeMap::new(), None, bounds).unwrap();
    let options = Options {
        listen,
        tls,
        internal: Some((Ipv4Addr::LOCALHOST, 0).into()),
        grace: Duration::from_secs(60),
    };
    let server = Server::bind(processor, options).await.unwrap();
    let place = server.place().clone();
    let internal = server.internal().unwrap();
    let (stop, stopped) = oneshot::channel();
    let ended = tokio::spawn(server.serve(async move {
        let _ = stopped.await;
    }));
    Running {
        place,
        internal,
        stop,
        ended,
    }
}

async fn connected(address: String) -> Channel {
    let endpoint = Endpoint::from_shared(address).unwrap();
    endpoint.connect().await.unwrap()
}

async fn plain(bounds: Bounds) -> (Running, Channel) {
    let running = start(anywhere(), None, bounds).await;
    let channel = connected(format!("http://{}", running.place)).await;
    (running, channel)
}

type Stream = (
    mpsc::Sender<ProcessingRequest>,
    Streaming<ProcessingResponse>,
);

/// Opens a stream and sends a chat's headers.
async fn begin(channel: &Channel) -> Result<Stream, Status> {
    let (messages, sent) = mpsc::channel(4);
    let fields = [
        (":method", "POST"),
        (":path", "/v1/chat/completions"),
        ("content-type", "application/json"),
    ];
    let header = |(name, value): (&str, &str)| HeaderValue {
        key: name.to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    let headers = HttpHeaders {
        headers: Some(HeaderMap {
            headers: fields.map(header).to_vec(),
        }),
        ..HttpHeaders::default()
    };
    let message = ProcessingRequest {
        request: Some(Request::RequestHeaders(headers)),
        ..ProcessingRequest::default()
    };
    messages.send(message).await.unwrap();
    let mut client =
        ExternalProcessorClient::new(channel.clone()).max_encoding_message_size(usize::MAX);
    let answers = client.process(ReceiverStream::new(sent)).await?;
    Ok((messages, answers.into_inner()))
}

/// Opens a stream and receives the answer to its headers.
async fn served(channel: &Channel) -> Stream {
    let (messages, mut answers) = begin(channel).await.unwrap();
    let answer = answers.message().await.unwrap().unwrap();
    assert!(matches!(answer.response, Some(Response::RequestHeaders(_))));
    (messages, answers)
}

fn body(bytes: usize) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(Request::RequestBody(HttpBody {
            body: vec![b' '; bytes],
            end_of_stream: true,
            ..HttpBody::default()
        })),
        ..ProcessingRequest::default()
    }
}

fn answers_a_body(answer: Option<ProcessingResponse>) -> bool {
    matches!(answer.unwrap().response, Some(Response::RequestBody(_)))
}

#[tokio::test]
async fn a_message_over_the_bound_ends_its_stream_with_an_error_and_no_other() {
    let bounds = Bounds {
        message_bytes: 1 << 20,
        ..Bounds::default()
    };
    let (_running, channel) = plain(bounds).await;
    let (messages, mut answers) = served(&channel).await;
    let (others, mut other) = served(&channel).await;
    messages.send(body(2 << 20)).await.unwrap();
    let error = answers.message().await.unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    others.send(body(1_000_000)).await.unwrap();
    assert!(answers_a_body(other.message().await.unwrap()));
}

/// The response to a request of the internal listener.
async fn probed(internal: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(internal).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn connections_without_a_request_keep_no_probe_away_and_their_number_is_bounded() {
    let (running, _channel) = plain(Bounds::default()).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(running.internal).await.unwrap();
        stream.write_all(b"GET /live HTTP/1.1\r\nx-").await.unwrap();
        silent.push(stream);
    }
    let answer = probed(running.internal, "/live").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // It was closed to admit another.
    let mut rest = Vec::new();
    let first = &mut silent[0];
    let closed = first.read_to_end(&mut rest).await;
    assert!(closed.is_err() || rest.is_empty());
    let metrics = probed(running.internal, "/metrics").await;
    let open = metrics.lines().find_map(|line| {
        line.strip_prefix("foreword_ext_proc_connections{listener=\"internal\"} ")
    });
    assert!(open.unwrap().parse::<u32>().unwrap() <= 64, "{metrics}");
}

#[tokio::test]
async fn a_body_of_eight_mebibytes_is_read() {
    let (_running, channel) = plain(Bounds::default()).await;
    let (messages, mut answers) = served(&channel).await;
    messages.send(body(8 << 20)).await.unwrap();
    assert!(answers_a_body(answers.message().await.unwrap()));
}

#[tokio::test]
async fn streams_beyond_the_bound_are_refused_and_places_come_back() {
    let bounds = Bounds {
        streams: 2,
        ..Bounds::default()
    };
    let (running, channel) = plain(bounds).await;
    // Another connection: on the first one, HTTP/2 itself would make a third stream wait.
    let other = connected(format!("http://{}", running.place)).await;
    let first = served(&channel).await;
    let _second = served(&channel).await;
    let refused = begin(&other).await.err().map(|status| status.code());
    assert_eq!(refused, Some(Code::ResourceExhausted));
    drop(first);
    let again = tokio::time::timeout(Duration::from_secs(60), async {
        while begin(&other).await.is_err() {
            tokio::task::yield_now().await;
        }
    });
    again.await.unwrap();
}

#[tokio::test]
async fn a_drain_says_so_lets_streams_end_and_ends() {
    let (running, channel) = plain(Bounds::default()).await;
    let mut health = HealthClient::new(channel.clone());
    for service in [
        "",
        "readiness",
        "envoy.service.ext_proc.v3.ExternalProcessor",
    ] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = health.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    let watch = health.watch(HealthCheckRequest::default()).await;
    let mut watch = watch.unwrap().into_inner();
    let now = watch.message().await.unwrap().unwrap().status();
    assert_eq!(now, ServingStatus::Serving);
    let (messages, mut answers) = served(&channel).await;
    running.stop.send(()).unwrap();
    let now = watch.message().await.unwrap().unwrap().status();
    assert_eq!(now, ServingStatus::NotServing);
    drop(watch);
    assert!(!running.ended.is_finished());
    messages.send(body(10)).await.unwrap();
    assert!(answers_a_body(answers.message().await.unwrap()));
    drop((messages, answers));
    assert!(running.ended.await.unwrap().unwrap(), "all have ended");
}

#[tokio::test]
async fn a_unix_socket_is_served_and_one_left_behind_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("foreword.sock");
    // A socket left behind by a killed process.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let running = start(Place::Unix(path.clone()), None, Bounds::default()).await;
    let channel = connected(format!("unix://{}", path.display())).await;
    drop(served(&channel).await);
    drop(channel);
    running.stop.send(()).unwrap();
    running.ended.await.unwrap().unwrap();
    assert!(!path.exists());
}

#[tokio::test]
async fn a_socket_that_another_process_has_put_there_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("foreword.sock");
    let running = start(Place::Unix(path.clone()), None, Bounds::default()).await;
    std::fs::remove_file(&path).unwrap();
    let _successor = std::os::unix::net::UnixListener::bind(&path).unwrap();
    running.stop.send(()).unwrap();
    running.ended.await.unwrap().unwrap();
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
}

#[tokio::test]
async fn with_an_authority_only_gateways_with_its_certificate_are_served() {
    let named = |name: &str| rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut authority = named("authority");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_pem = authority.self_signed(&key).unwrap().pem();
    let issuer = rcgen::Issuer::new(authority, key);
    let issued = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = named(name).signed_by(&key, &issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    let (certificate, key) = issued("localhost");
    let tls = Tls {
        certificate: certificate.into_bytes(),
        key: key.into_bytes(),
        client_authority: Some(authority_pem.clone().into_bytes()),
    };
    let running = start(anywhere(), Some(tls), Bounds::default()).await;
    let connect = |identity: Option<Identity>| {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&authority_pem))
            .domain_name("localhost");
        if let Some(identity) = identity {
            tls = tls.identity(identity);
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", running.place)).unwrap();
        endpoint.tls_config(tls).unwrap().connect_lazy()
    };
    let (certificate, key) = issued("gateway");
    served(&connect(Some(Identity::from_pem(certificate, key)))).await;
    assert!(begin(&connect(None)).await.is_err());
    let own = rcgen::KeyPair::generate().unwrap();
    let certificate = named("gateway").self_signed(&own).unwrap().pem();
    let own = Identity::from_pem(certificate, own.serialize_pem());
    assert!(begin(&connect(Some(own))).await.is_err());
}
