//! PostgreSQL with the pgvector extension as a store.
//!
//! ```text
//!   table: id text, title text, text text, metadata jsonb, embedding vector(N)
//!   SELECT …, embedding <=> $1 AS distance FROM table WHERE metadata @> $2 ORDER BY embedding <=> $1 LIMIT k
//! ```
//!
//! The whole search is one stage, without words. A connection is opened on first use, and again after it was lost;
//! searches use it one at a time. If the server stops answering while its machine still acknowledges data, one search
//! waits until it answers or closes the connection, and the others fail after `TURN_TIMEOUT`. TLS is not supported:
//! run the database on the same machine or network, or put a proxy in between.

use super::{Ask, Stage, Store, StoreError, StoreUrlError};
use crate::Document;
use crate::collection::ScoredDocument;
use crate::index::Metric;
use parking_lot::Mutex;
use postgres::types::ToSql;
use postgres::{Client, Config, NoTls, Row};
use serde_json::{Map, Value};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// A table of a PostgreSQL server, as a store of documents.
pub struct Pgvector {
    config: Config,
    /// The table's name, quoted.
    table: String,
    metric: Metric,
    client: Mutex<Option<Client>>,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a search waits for the connection while another search uses it.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a connection is lost if the server's machine does not acknowledge data.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without data after which the server's machine is probed.
const PROBE_AFTER: Duration = Duration::from_secs(10);
/// Time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of unanswered probes after which a connection is lost.
const PROBES: u32 = 2;
/// Time after which PostgreSQL aborts a search.
const STATEMENT_TIMEOUT: &str = "-c statement_timeout=5000";

impl Pgvector {
    /// Returns a store for the table of this name in the database at `url`
    /// (`postgres://user:password@host:port/database`). Vectors are compared by `metric`, for which the table should
    /// have an index.
    ///
    /// # Errors
    /// Returns [`StoreUrlError::Postgres`] when `url` is invalid.
    pub fn new(url: &str, table: &str, metric: Metric) -> Result<Self, StoreUrlError> {
        let mut config = url.parse::<Config>().map_err(StoreUrlError::Postgres)?;
        config
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(ACKNOWLEDGE_TIMEOUT)
            .keepalives_idle(PROBE_AFTER)
            .keepalives_interval(PROBE_INTERVAL)
            .keepalives_retries(PROBES);
        let given = config.get_options().unwrap_or_default();
        let options = format!("{given} {STATEMENT_TIMEOUT}");
        config.options(options.trim_start());
        let parts: Vec<String> = table.split('.').map(quoted).collect();
        Ok(Self {
            config,
            table: parts.join("."),
            metric,
            client: Mutex::default(),
        })
    }

    /// Runs `work` on the connection, and once more on a new connection if the old one was lost.
    fn with<T>(
        &self,
        work: impl Fn(&mut Client) -> Result<T, postgres::Error>,
    ) -> Result<T, StoreError> {
        let busy = || StoreError::Unavailable("PostgreSQL: busy with an earlier search".to_owned());
        let mut place = self.client.try_lock_for(TURN_TIMEOUT).ok_or_else(busy)?;
        let had = place.as_ref().is_some_and(|client| !client.is_closed());
        loop {
            let is_new = place.as_ref().is_none_or(Client::is_closed);
            if is_new {
                *place = Some(
                    self.config
                        .connect(NoTls)
                        .map_err(|error| store_error(&error))?,
                );
            }
            let Some(client) = place.as_mut() else {
                return Err(StoreError::Unavailable("no connection".to_owned()));
            };
            match work(client) {
                Err(error) if (error.is_closed() || client.is_closed()) && had && !is_new => {
                    *place = None;
                }
                outcome => return outcome.map_err(|error| store_error(&error)),
            }
        }
    }
}

impl Drop for Pgvector {
    /// Closes the connection on a thread of its own: the client waits for a runtime, which panics inside of another.
    fn drop(&mut self) {
        if let Some(client) = self.client.get_mut().take() {
            let _ = std::thread::spawn(move || drop(client)).join();
        }
    }
}

impl Store for Pgvector {
    fn search(&self, ask: &Ask, stage: &mut Stage<'_>) -> Result<Vec<ScoredDocument>, StoreError> {
        let operator = match self.metric {
            Metric::Cosine => "<=>",
            Metric::InnerProduct => "<#>",
            Metric::L2 => "<->",
        };
        let vector = literal(&ask.vector);
        let mut parameters: Vec<String> = vec![vector];
        // Rows whose embedding is still to come have no distance.
        let mut conditions =
            String::from("embedding IS NOT NULL AND text IS NOT NULL AND id IS NOT NULL");
        for (field, wanted) in &ask.filters {
            let any = match wanted {
                Value::Array(any) => any.as_slice(),
                wanted => std::slice::from_ref(wanted),
            };
            conditions.push_str(" AND (false");
            for value in any {
                let mut object = Map::new();
                object.insert(field.clone(), value.clone());
                parameters.push(Value::Object(object).to_string());
                // Writing to a string cannot fail.
                let _ = write!(
                    conditions,
                    " OR metadata @> ${}::text::jsonb",
                    parameters.len()
                );
            }
            conditions.push(')');
        }
        let statement = format!(
            "SELECT id::text, coalesce(title, '')::text, text::text, coalesce(metadata, '{{}}'::jsonb)::text, \
             (embedding {operator} $1::text::vector)::float8 AS distance \
             FROM {} WHERE {conditions} ORDER BY embedding {operator} $1::text::vector LIMIT {}",
            self.table, ask.k
        );
        let rows = self.with(|client| {
            let parameters: Vec<&(dyn ToSql + Sync)> = parameters
                .iter()
                .map(|value| value as &(dyn ToSql + Sync))
                .collect();
            client.query(&statement, &parameters)
        })?;
        let found: Vec<ScoredDocument> = rows.iter().map(|row| self.found(row)).collect();
        // The search is complete, so the result of `stage` does not matter.
        let _ = stage(&found);
        Ok(found)
    }

    /// Returns PostgreSQL's count of rows inserted, updated and deleted in the table and its partitions since its
    /// statistics began. It is always 0 for a view, of which PostgreSQL keeps no statistics.
    fn version(&self) -> Result<String, StoreError> {
        let row = self.with(|client| {
            let statement = "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::text FROM pg_stat_all_tables \
                             WHERE relid = $1::text::regclass \
                             OR relid IN (SELECT relid FROM pg_partition_tree($1::text::regclass))";
            client.query_one(statement, &[&self.table])
        })?;
        Ok(row.get(0))
    }

    fn embedder(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    fn metric(&self) -> Option<Metric> {
        Some(self.metric)
    }
}

impl Pgvector {
    fn found(&self, row: &Row) -> ScoredDocument {
        let distance: f64 = row.get(4);
        let score = match self.metric {
            Metric::Cosine => 1.0 - distance,
            // pgvector returns the negative product.
            Metric::InnerProduct => -distance,
            Metric::L2 => -distance * distance,
        };
        let metadata: String = row.get(3);
        ScoredDocument {
            score: score as f32,
            document: Arc::new(Document {
                id: row.get(0),
                title: row.get(1),
                text: row.get(2),
                metadata: serde_json::from_str(&metadata).unwrap_or_default(),
            }),
        }
    }
}

/// Translates an error for the caller. SQLSTATE 22 means invalid data, such as a vector of the wrong length.
fn store_error(error: &postgres::Error) -> StoreError {
    match error.as_db_error() {
        Some(told) if told.code().code().starts_with("22") => {
            StoreError::Refused(told.message().to_owned())
        }
        Some(told) => StoreError::Unavailable(format!("PostgreSQL: {}", told.message())),
        None => StoreError::Unavailable(format!("PostgreSQL: {error}")),
    }
}

/// Formats a vector as pgvector reads it.
fn literal(vector: &[f32]) -> String {
    let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
    format!("[{}]", numbers.join(","))
}

/// Quotes a name for SQL.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_the_url_are_kept() {
        let options = |url: &str| {
            let store = Pgvector::new(url, "t", Metric::L2).unwrap();
            store.config.get_options().map(str::to_owned)
        };
        assert_eq!(
            options("postgres://u@h/d?options=-c%20search_path%3Dbooks").as_deref(),
            Some("-c search_path=books -c statement_timeout=5000")
        );
        assert_eq!(
            options("postgres://u@h/d").as_deref(),
            Some("-c statement_timeout=5000")
        );
    }
}
