//! Tests `/v1/embeddings`, `/v1/retrieve`, `/v1/prefill`, and their behaviour when the index or the embedder is
//! missing.

use crate::support::client::{get, post};
use crate::support::{MODEL, Options, TestServer};
use foreword_retrieval::index::{Kind, Metric};
use foreword_retrieval::ingest::mirror;
use foreword_retrieval::store::Stage;
use foreword_retrieval::{
    Ask, Collection, Document, ScoredDocument, Shelf, Spec, Store, StoreError, Tuning,
};
use foreword_server::retrieval::{Config, EmbedderSource};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

const TEXTS: [(&str, &str); 3] = [
    (
        "ferry",
        "The ferry \"Ångström\" leaves\nthe harbour at noon.",
    ),
    ("train", "The train leaves the station at \\ seven\u{1}."),
    ("bus", "Buses are washed on Sundays."),
];

/// Writes an index of [`TEXTS`].
fn index(path: &Path) {
    let embedder = EmbedderSource::Hashing(256).open().unwrap();
    let documents = TEXTS.map(|(id, text)| Document {
        id: id.to_owned(),
        text: text.to_owned(),
        metadata: json!({"wheels": id != "ferry"})
            .as_object()
            .unwrap()
            .clone(),
        ..Document::default()
    });
    let spec = Spec {
        dimensions: embedder.dimensions(),
        metric: Metric::Cosine,
        kind: Kind::Hnsw,
        embedder: embedder.name().to_owned(),
        tuning: Tuning::default(),
    };
    let (collection, _) = mirror(Collection::new(spec), &documents, &*embedder, |_, _| {}).unwrap();
    collection.save(path).unwrap();
}

/// A server that searches the index in `folder`, if there is one.
async fn house(folder: &TempDir, embedder: &str) -> TestServer {
    let shelf = Shelf::new(folder.path().join("index"));
    let retrieval = Config {
        embedder: embedder.parse().unwrap(),
        store: Some(Arc::new(shelf)),
        ordering: foreword_ordering::Config::default()
            .with_placement(foreword_ordering::policy::Placement::FREE),
        ..Config::default()
    };
    TestServer::with(Options {
        retrieval,
        ..Options::default()
    })
    .await
}

fn ids(answer: &Value) -> Vec<&str> {
    let data = answer["data"].as_array().unwrap();
    data.iter()
        .map(|found| found["id"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn embeddings_come_in_openais_shape() {
    let house = TestServer::open().await;
    let path = "/v1/embeddings";
    let body = json!({"input": ["the ferry", "the train"], "model": "hashing-768"});
    let answer = post(house.address(), path, &body).await.json();
    assert_eq!(answer["object"], "list");
    assert_eq!(answer["model"], "hashing-768");
    assert_eq!(answer["data"][1]["index"], 1);
    assert_eq!(answer["usage"]["total_tokens"], 4);
    let vector = answer["data"][0]["embedding"].as_array().unwrap();
    assert_eq!(vector.len(), 768);
    let served = json!({"input": ["the ferry", "the train"], "model": MODEL});
    let served = post(house.address(), path, &served).await.json();
    assert_eq!(
        (&served["model"], &served["data"]),
        (&json!(MODEL), &answer["data"])
    );

    let body = json!({"input": "the ferry", "encoding_format": "base64", "dimensions": 768});
    let answer = post(house.address(), path, &body).await.json();
    // Four bytes of f32 per number; three bytes are four characters of base64.
    assert_eq!(answer["data"][0]["embedding"].as_str().unwrap().len(), 4096);

    let many = [vec!["x"; 129], vec!["?!"]].concat();
    for (body, status, words) in [
        (
            json!({"input": "x", "dimensions": 3}),
            400,
            "dimensions must be 768",
        ),
        (
            json!({"input": ["x", "?!"]}),
            400,
            "text 1 has nothing to embed",
        ),
        (json!({"input": many}), 400, "text 129 has nothing to embed"),
        (
            json!({"input": "x", "model": "ada"}),
            404,
            "`ada` does not exist here",
        ),
    ] {
        let refused = post(house.address(), path, &body).await;
        assert_eq!(refused.status, status, "{body}");
        let message = refused.json()["error"]["message"].to_string();
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn a_question_finds_its_documents_by_words_and_by_vector() {
    let folder = TempDir::new().unwrap();
    index(&folder.path().join("index"));
    let house = house(&folder, "hashing:256").await;
    let path = "/v1/retrieve";
    let body = json!({"query": "When does the train leave the station?", "k": 2});
    let answer = post(house.address(), path, &body).await.json();
    assert_eq!(ids(&answer), ["train", "ferry"]);
    let best = &answer["data"][0];
    assert_eq!(
        (best["rank"].as_u64(), &best["metadata"]["wheels"]),
        (Some(0), &json!(true))
    );
    assert_eq!(best["text"], TEXTS[1].1);
    assert!(
        answer["version"]
            .as_str()
            .is_some_and(|version| !version.is_empty())
    );

    let body = json!({"query": "ferry at noon", "k": 3, "filters": {"wheels": true}});
    let answer = post(house.address(), path, &body).await.json();
    assert_eq!(answer["data"].as_array().unwrap().len(), 2);
    // The limit applies to all values of all filters together.
    for (values, status) in [(255, 200), (256, 400)] {
        let filters = json!({"wheels": true, "number": vec![7; values]});
        let body = json!({"query": "ferry at noon", "filters": filters});
        let answer = post(house.address(), path, &body).await;
        assert_eq!(answer.status, status, "{}", answer.text());
    }

    let embedding = json!({"input": "buses on Sundays"});
    let embedding = post(house.address(), "/v1/embeddings", &embedding)
        .await
        .json();
    let body = json!({"embedding": embedding["data"][0]["embedding"], "k": 1});
    let answer = post(house.address(), path, &body).await.json();
    assert_eq!(ids(&answer), ["bus"]);
    // Without words the score is the cosine.
    let score = answer["data"][0]["score"].as_f64().unwrap();
    assert!(score > 0.1, "{score}");

    let refused = post(house.address(), path, &json!({"embedding": [1.0]})).await;
    assert_eq!(refused.status, 400);
    assert!(
        refused.json()["error"]["message"]
            .to_string()
            .contains("1 dimensions, this index has 256")
    );
}

/// A store that refuses every search, with this reason.
struct Refusing(&'static str);

impl Store for Refusing {
    fn search(&self, _: &Ask, _: &mut Stage<'_>) -> Result<Vec<ScoredDocument>, StoreError> {
        Err(StoreError::Refused(self.0.to_owned()))
    }

    fn version(&self) -> Result<String, StoreError> {
        Ok("1".to_owned())
    }

    fn embedder(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

#[tokio::test]
async fn what_a_store_refuses_is_its_clients_fault_only_if_the_client_sent_it() {
    let filters = json!({"price": 1.5});
    for (reason, retrieval, status, param) in [
        ("different dimensions", json!({}), 503, None),
        (
            "different dimensions",
            json!({"filters": filters}),
            503,
            None,
        ),
        (
            "no such filter",
            json!({"filters": filters}),
            400,
            Some("filters"),
        ),
        (
            "no such vector",
            json!({"embedding": [1]}),
            400,
            Some("embedding"),
        ),
    ] {
        let retrieval_config = Config {
            store: Some(Arc::new(Refusing(reason))),
            ..Config::default()
        };
        let house = TestServer::with(Options {
            retrieval: retrieval_config,
            ..Options::default()
        })
        .await;
        let mut asked = retrieval.clone();
        asked["query"] = "ferry".into();
        let refused = post(house.address(), "/v1/retrieve", &asked).await;
        assert_eq!(refused.status, status, "{reason}: {}", refused.text());
        assert_eq!(refused.json()["error"]["param"].as_str(), param, "{reason}");
        // A chat is answered without documents if it is not the client's fault.
        let chat = json!({"model": MODEL, "retrieval": asked, "messages": [{"role": "user", "content": "say(ok)"}]});
        let answer = post(house.address(), "/v1/chat/completions", &chat).await;
        let (status, param) = match param {
            Some(param) => (400, Some(format!("retrieval.{param}"))),
            None => (200, None),
        };
        assert_eq!(answer.status, status, "{reason}: {}", answer.text());
        assert_eq!(
            answer.json()["error"]["param"].as_str(),
            param.as_deref(),
            "{reason}"
        );
    }
}

/// A store whose content is replaced while it is searched.
#[derive(Default)]
struct Replaced(AtomicU32);

impl Store for Replaced {
    fn search(&self, _: &Ask, _: &mut Stage<'_>) -> Result<Vec<ScoredDocument>, StoreError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Vec::new())
    }

    fn version(&self) -> Result<String, StoreError> {
        Ok(self.0.load(Ordering::Relaxed).to_string())
    }

    fn embedder(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

#[tokio::test]
async fn documents_of_a_replaced_index_do_not_get_the_new_version() {
    let retrieval = Config {
        store: Some(Arc::new(Replaced::default())),
        ..Config::default()
    };
    let house = TestServer::with(Options {
        retrieval,
        ..Options::default()
    })
    .await;
    for version in ["0", "1"] {
        let answer = post(house.address(), "/v1/retrieve", &json!({"query": "ferry"})).await;
        assert_eq!(answer.json()["version"], version);
    }
}

#[tokio::test]
async fn a_chat_that_wants_documents_gets_them_and_the_next_order_knows_what_is_held() {
    let folder = TempDir::new().unwrap();
    index(&folder.path().join("index"));
    let house = house(&folder, "hashing:256").await;
    let chat = |question: &str| {
        json!({"model": MODEL, "messages": [{"role": "user", "content": format!("{question} say(ok)")}],
            "retrieval": {"query": question, "k": 2}})
    };
    let answer = post(
        house.address(),
        "/v1/chat/completions",
        &chat("When does the train leave the station?"),
    )
    .await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-foreword-retrieved"), Some("2"));
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "ok");
    let bytes: u64 = TEXTS[..2].iter().map(|(_, text)| text.len() as u64).sum();
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > bytes);

    // The ferry matches better now, but the cached prefix begins with the train.
    let body = json!({"query": "the ferry in the harbour at noon", "k": 2, "order": true});
    let ordered = post(house.address(), "/v1/retrieve", &body).await.json();
    assert_eq!(ids(&ordered), ["train", "ferry"]);
    assert_eq!(
        (&ordered["data"][0]["rank"], &ordered["matched"]),
        (&json!(1), &json!(2))
    );
    let body = json!({"query": "the ferry in the harbour at noon", "k": 2, "order": true, "cache_salt": "other"});
    let others = post(house.address(), "/v1/retrieve", &body).await.json();
    assert_eq!(
        (ids(&others), &others["matched"]),
        (vec!["ferry", "train"], &json!(0))
    );

    let second = post(
        house.address(),
        "/v1/chat/completions",
        &chat("The ferry in the harbour at noon?"),
    )
    .await
    .json();
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    assert!(cached > 60, "{cached} tokens of two documents");

    // A message without a word is no question; a field without one is an error.
    let thanks = |retrieval: Value| {
        let messages = json!([{"role": "user", "content": "\u{1f44d}"}]);
        json!({"messages": messages, "retrieval": retrieval, "max_tokens": 1})
    };
    let answer = post(
        house.address(),
        "/v1/chat/completions",
        &thanks(json!(true)),
    )
    .await;
    assert_eq!(
        (answer.status, answer.header("x-foreword-retrieved")),
        (200, Some("0"))
    );
    let asked = thanks(json!({"query": "?!"}));
    let refused = post(house.address(), "/v1/chat/completions", &asked).await;
    assert_eq!(refused.status, 400);
    house.idle().await;
}

#[tokio::test]
async fn without_an_index_searching_is_refused_and_everything_else_is_served() {
    let folder = TempDir::new().unwrap();
    let house = house(&folder, "hashing:256").await;
    let refused = post(house.address(), "/v1/retrieve", &json!({"query": "ferry"})).await;
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("1"))
    );
    assert_eq!(refused.json()["error"]["code"], "retriever_unavailable");
    assert!(
        !refused
            .json()
            .to_string()
            .contains(&*folder.path().to_string_lossy())
    );

    let chat = |retrieval: Value| json!({"messages": [{"role": "user", "content": "say(hello)"}], "retrieval": retrieval});
    let answer = post(house.address(), "/v1/chat/completions", &chat(json!(true))).await;
    assert_eq!(answer.header("x-foreword-retrieved"), Some("failed"));
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "hello");
    let strict = chat(json!({"on_failure": "fail"}));
    let refused = post(house.address(), "/v1/chat/completions", &strict).await;
    assert_eq!(refused.status, 503);

    // The index appears and is used; when it is deleted, the mapped one continues to serve.
    index(&folder.path().join("index"));
    let query = json!({"query": "the ferry", "k": 1});
    let answer = post(house.address(), "/v1/retrieve", &query).await.json();
    assert_eq!(ids(&answer), ["ferry"]);
    std::fs::remove_file(folder.path().join("index")).unwrap();
    let answer = post(house.address(), "/v1/retrieve", &query).await.json();
    assert_eq!(ids(&answer), ["ferry"]);
    let metrics = get(house.internal(), "/metrics").await;
    let metrics = String::from_utf8(metrics.body).unwrap();
    assert!(
        metrics.contains("foreword_retrievals_total{outcome=\"failed\"} 3"),
        "{metrics}"
    );
}

#[tokio::test]
async fn without_its_embedder_an_index_is_searched_by_vectors_alone() {
    let folder = TempDir::new().unwrap();
    index(&folder.path().join("index"));
    let house = house(&folder, "models/missing").await;
    for (path, body) in [
        ("/v1/embeddings", json!({"input": "ferry"})),
        ("/v1/retrieve", json!({"query": "ferry"})),
    ] {
        let refused = post(house.address(), path, &body).await;
        assert_eq!(refused.status, 503, "{path}");
    }
    let embedder = EmbedderSource::Hashing(256).open().unwrap();
    let vector = &embedder.embed(&["the ferry"]).unwrap()[0].vector;
    let answer = post(
        house.address(),
        "/v1/retrieve",
        &json!({"embedding": vector, "k": 1}),
    )
    .await;
    assert_eq!(ids(&answer.json()), ["ferry"]);
    // An embedder with other vectors is as good as none.
    let other = self::house(&folder, "hashing:128").await;
    let refused = post(other.address(), "/v1/retrieve", &json!({"query": "ferry"})).await;
    assert_eq!(refused.status, 503);
}

#[tokio::test]
async fn a_prompts_beginning_is_computed_ahead_and_found_by_the_chat() {
    let house = TestServer::open().await;
    let system = "You are a captain. ".repeat(20);
    let body = json!({"model": MODEL, "messages": [{"role": "system", "content": system}]});
    let answer = post(house.address(), "/v1/prefill", &body).await;
    assert_eq!(answer.status, 200);
    let usage = &answer.json()["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    let computed = usage["prompt_tokens"].as_u64().unwrap();
    // The message's mark, its text, and the next message's mark.
    assert_eq!(computed, system.len() as u64 + 2);

    let chat = json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": "say(aye)"}]});
    let answer = post(house.address(), "/v1/chat/completions", &chat)
        .await
        .json();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    assert!(cached + 16 > computed, "{cached} of {computed}");
    let again = post(house.address(), "/v1/prefill", &body).await.json();
    assert_eq!(
        again["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap(),
        computed - 1
    );
    house.idle().await;
}
