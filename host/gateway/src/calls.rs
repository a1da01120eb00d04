//! HTTP calls that the filter makes: to a retriever for a request, and to engines' feeds for the plugin.
//!
//! In Envoy a call names a cluster of Envoy's configuration. Here the operator gives each cluster an address
//! (`--cluster NAME=HOST:PORT`); a call to a cluster without one fails at once, as it does in Envoy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use foreword_filter::HostError;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// The clusters that the filter may call, and the connections to them.
pub(crate) struct Clusters {
    addresses: BTreeMap<String, String>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// An HTTP call of the filter that is ready to be made.
pub(crate) struct Call {
    pub(crate) id: u64,
    request: Request<Full<Bytes>>,
    limit: Duration,
}

/// The result of a call. `status` is `None` if there was no response, and `body` is `None` if it was too long.
pub(crate) struct Answer {
    pub(crate) id: u64,
    pub(crate) status: Option<u16>,
    pub(crate) body: Option<Bytes>,
}

impl Clusters {
    /// Returns the clusters with these addresses, `host:port` by name. Connections are opened on first use.
    pub(crate) fn new(addresses: BTreeMap<String, String>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Self { addresses, client }
    }

    /// Returns a call, to be [made](Clusters::make). Fails if the cluster has no address or the headers are invalid.
    pub(crate) fn prepare(
        &self,
        id: u64,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        limit_ms: u64,
    ) -> Result<Call, HostError> {
        let call = "call";
        let refused = |status| HostError { call, status };
        let address = self.addresses.get(cluster).ok_or(refused(NO_CLUSTER))?;
        let pseudo = |name| headers.iter().find(|(known, _)| *known == name);
        let path = pseudo(":path").map_or("/", |(_, path)| *path);
        let method = pseudo(":method").map_or("GET", |(_, method)| *method);
        let uri = format!("http://{address}{path}").parse::<Uri>();
        let uri = uri.map_err(|_| refused(BAD_CALL))?;
        let mut request = Request::new(Full::new(Bytes::copy_from_slice(body)));
        *request.uri_mut() = uri;
        *request.method_mut() = method.parse::<Method>().map_err(|_| refused(BAD_CALL))?;
        for (name, value) in headers {
            let name = match *name {
                ":authority" => HOST,
                name if name.starts_with(':') => continue,
                name => name.parse::<HeaderName>().map_err(|_| refused(BAD_CALL))?,
            };
            let value = HeaderValue::from_str(value).map_err(|_| refused(BAD_CALL))?;
            request.headers_mut().append(name, value);
        }
        Ok(Call {
            id,
            request,
            limit: Duration::from_millis(limit_ms),
        })
    }

    /// Fetches `path` of an endpoint within `limit`; `None` without a response of status 200 and at most `max_bytes`.
    pub(crate) fn page(
        &self,
        address: SocketAddr,
        path: &str,
        limit: Duration,
        max_bytes: usize,
    ) -> impl Future<Output = Option<Bytes>> + Send + 'static {
        let mut request = Request::new(Full::default());
        let uri = format!("http://{address}{path}").parse();
        let response = uri.ok().map(|uri| {
            *request.uri_mut() = uri;
            self.client.request(request)
        });
        async move {
            let page = tokio::time::timeout(limit, async {
                let response = response?.await.ok()?;
                if response.status() != StatusCode::OK {
                    return None;
                }
                let body = Limited::new(response.into_body(), max_bytes);
                Some(body.collect().await.ok()?.to_bytes())
            });
            page.await.ok().flatten()
        }
    }

    /// Makes a call, and returns its result within the call's time limit. A body of more than `max_bytes` is dropped.
    pub(crate) fn make(
        &self,
        call: Call,
        max_bytes: usize,
    ) -> impl Future<Output = Answer> + Send + 'static {
        let Call { id, request, limit } = call;
        let response = self.client.request(request);
        async move {
            let answer = tokio::time::timeout(limit, async {
                let response = response.await.ok()?;
                let status = response.status().as_u16();
                // A body that breaks off counts as no response; one that is too long does not.
                let body = Limited::new(response.into_body(), max_bytes).collect();
                let body = match body.await {
                    Ok(body) => Some(body.to_bytes()),
                    Err(error) if error.is::<http_body_util::LengthLimitError>() => None,
                    Err(_) => return None,
                };
                Some((status, body))
            });
            let (status, body) = match answer.await {
                Ok(Some((status, body))) => (Some(status), body),
                Ok(None) => (None, Some(Bytes::new())),
                // Envoy reports a time-out as a 504.
                Err(_) => (Some(504), Some(Bytes::new())),
            };
            Answer { id, status, body }
        }
    }
}

/// Time after which an idle connection is closed.
const IDLE: Duration = Duration::from_secs(60);
/// Status of a call to a cluster that has no address.
const NO_CLUSTER: u32 = 1;
/// Status of a call that cannot be written as HTTP.
const BAD_CALL: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Serves `bytes` on one connection; the task returns the request.
    async fn answer(bytes: &'static str) -> (Clusters, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"{}") {
                head.push(stream.read_u8().await.unwrap());
            }
            match bytes {
                // Nothing comes, and the connection stays open.
                "" => std::future::pending::<()>().await,
                _ => stream.write_all(bytes.as_bytes()).await.unwrap(),
            }
            String::from_utf8(head).unwrap()
        });
        let addresses = BTreeMap::from([("retriever".to_owned(), address.to_string())]);
        (Clusters::new(addresses), asked)
    }

    const HEADERS: [(&str, &str); 4] = [
        (":method", "POST"),
        (":path", "/v1/retrieve?k=3"),
        (":authority", "retriever"),
        ("x-token", "t"),
    ];

    #[tokio::test]
    async fn a_call_is_made_as_it_is_worded_and_its_response_bounded() {
        for (max_bytes, body) in [(3, Some("abc")), (2, None)] {
            let (clusters, asked) =
                answer("HTTP/1.1 201 Created\r\ncontent-length: 3\r\n\r\nabc").await;
            let call = clusters.prepare(7, "retriever", &HEADERS, b"{}", 10_000);
            let answer = clusters.make(call.unwrap(), max_bytes).await;
            assert_eq!((answer.id, answer.status), (7, Some(201)));
            assert_eq!(answer.body.as_deref(), body.map(str::as_bytes));
            let asked = asked.await.unwrap();
            for words in [
                "POST /v1/retrieve?k=3 HTTP/1.1\r\n",
                "host: retriever\r\n",
                "x-token: t\r\n",
                "content-length: 2\r\n",
            ] {
                assert!(asked.contains(words), "{asked}");
            }
        }
    }

    #[tokio::test]
    async fn a_response_that_breaks_off_is_none_and_one_that_never_comes_a_504() {
        for (bytes, limit_ms, status) in [
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",
                10_000,
                None,
            ),
            ("nonsense\r\n\r\n", 10_000, None),
            ("", 1, Some(504)),
        ] {
            let (clusters, _asked) = answer(bytes).await;
            let call = clusters.prepare(1, "retriever", &HEADERS, b"{}", limit_ms);
            let answer = clusters.make(call.unwrap(), 1_000).await;
            assert_eq!(answer.status, status, "{bytes}");
        }
    }

    #[test]
    fn a_cluster_without_an_address_fails_at_once() {
        let clusters = Clusters::new(BTreeMap::new());
        let call = clusters.prepare(1, "retriever", &HEADERS, b"{}", 1);
        assert_eq!(call.err().map(|error| error.status), Some(NO_CLUSTER));
    }
}
