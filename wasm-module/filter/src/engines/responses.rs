//! Tracks which engine stores which response: only that engine can handle a request with its `previous_response_id`.
//!
//! ```text
//!   response of a  {"id": "resp_1", …}                 ──▶ shared data: page of hash(tenant, resp_1) ← (hash, a)
//!   request        {"previous_response_id": "resp_1"}   ◀── a is the only candidate, if it is one
//! ```
//!
//! All workers read and write the pages; a full page evicts its oldest entry. An id is hashed with its tenant's name,
//! so that no tenant learns where another's response is stored.

use foreword_ordering::EngineId;
use foreword_ordering::document::Fingerprint;

use super::EngineConfig;
use crate::host::{Host, HostError};
use crate::swap;

/// A table in shared data of which engine stores which response (Responses API), by tenant and response id. See the
/// module's documentation.
#[derive(Debug, Default)]
pub(super) struct KeptResponses {
    /// The name of the ring buffer through which workers share updates, which is part of the pages' keys.
    ring: String,
    /// Keys of the table's pages in shared data; empty if there is a single engine.
    pages: Vec<String>,
    /// A hash of each engine's name, in the order of engine ids.
    engines: Vec<u64>,
}

impl KeptResponses {
    /// Opens the table's pages in shared data, and creates those that do not exist. `ring`, the name of the ring buffer
    /// through which workers share updates, is part of their keys.
    pub(super) fn open(
        host: &impl Host,
        list: &[EngineConfig],
        ring: &str,
    ) -> Result<Self, HostError> {
        let mut pages = Vec::with_capacity(PAGES);
        for page in 0..PAGES {
            let key = key(ring, page);
            swap::create(host, &key, &[])?;
            pages.push(key);
        }
        let engines = list.iter().map(|engine| hash_of(&[&engine.name]));
        Ok(Self {
            ring: ring.to_owned(),
            pages,
            engines: engines.collect(),
        })
    }

    /// Returns the engine that stores the tenant's response `id`; `None` if that is unknown, or no configured engine
    /// has the recorded name.
    pub(super) fn engine(&self, host: &impl Host, tenant: &str, id: &str) -> Option<EngineId> {
        let hash = hash_of(&[tenant, id]);
        let (page, _) = host.shared_data(self.page(hash)?).ok()??;
        let (entries, _) = page.as_chunks::<ENTRY>();
        let (_, engine) = entries.iter().map(read).find(|(kept, _)| *kept == hash)?;
        let mut engines = (0..).map(EngineId).zip(&self.engines);
        let (engine, _) = engines.find(|(_, name)| **name == engine)?;
        Some(engine)
    }

    /// Records that `engine` stores the tenant's response `id`. Gives up if other workers are faster at several
    /// attempts: a later request with the id then goes to any engine.
    pub(super) fn keep(&self, host: &impl Host, tenant: &str, id: &str, engine: EngineId) {
        let hash = hash_of(&[tenant, id]);
        let name = self.engines.get(usize::from(engine.0));
        let (Some(key), Some(name)) = (self.page(hash), name) else {
            return;
        };
        let _ = swap::count_use(host, &self.ring);
        let _ = swap::change(host, key, None, read_page, |page| {
            let (entries, _) = page.as_chunks::<ENTRY>();
            let mut new = [hash.to_le_bytes(), name.to_le_bytes()].concat();
            let others = entries.iter().filter(|entry| read(entry).0 != hash);
            for entry in others.take(MAX_ENTRIES - 1) {
                new.extend_from_slice(entry);
            }
            new
        });
    }

    fn page(&self, hash: u64) -> Option<&str> {
        let count = u64::try_from(self.pages.len()).ok()?;
        let page = usize::try_from(hash.checked_rem(count)?).ok()?;
        self.pages.get(page).map(String::as_str)
    }
}

/// Removes the entries of the table under the ring buffer name `ring`.
pub(crate) fn empty_responses(host: &impl Host, ring: &str) -> Result<(), HostError> {
    (0..PAGES).try_for_each(|page| swap::empty(host, &key(ring, page)))
}

fn key(ring: &str, page: usize) -> String {
    format!("foreword/responses/{LAYOUT}/{ring}/{page}")
}

fn hash_of(parts: &[&str]) -> u64 {
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    Fingerprint::of(&parts).0
}

fn read_page<H: Host>(host: &H, key: &str) -> Result<(Vec<u8>, u32), HostError> {
    host.shared_data(key)?.ok_or(HostError {
        call: "shared_data",
        status: NO_PAGE,
    })
}

fn read(entry: &[u8; ENTRY]) -> (u64, u64) {
    let (numbers, _) = entry.as_chunks::<8>();
    let mut numbers = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let mut next = || numbers.next().unwrap_or_default();
    (next(), next())
}

/// Version of the layout of the table's pages in shared data. A build with another version starts with empty pages.
const LAYOUT: u32 = 1;
const PAGES: usize = 64;
/// The maximum number of entries on one page: 4,096 responses on all pages, in 64 KiB.
const MAX_ENTRIES: usize = 64;
/// Length of an entry in bytes: the hash of tenant and response id, and the hash of the engine's name.
const ENTRY: usize = 16;
/// Error status if a page of this table (ids of responses, with the engines that store them) is missing in shared data.
const NO_PAGE: u32 = 204;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::engines;
    use crate::tests::scripted::ScriptedHost;
    use serde_json::json;

    fn kept(host: &ScriptedHost, names: &[&str]) -> KeptResponses {
        let list = names.iter().enumerate();
        let list =
            list.map(|(at, name)| json!({"name": name, "address": format!("10.0.0.{at}:80")}));
        let list = json!(list.collect::<Vec<_>>());
        KeptResponses::open(host, &engines(Some(&list)).unwrap(), "r").unwrap()
    }

    #[test]
    fn every_worker_finds_the_engine_that_keeps_a_tenants_response() {
        let host = ScriptedHost::default();
        let (one, other) = (kept(&host, &["a", "b"]), kept(&host, &["a", "b"]));
        assert_eq!(one.engine(&host, "red", "resp_1"), None);
        one.keep(&host, "red", "resp_1", EngineId(1));
        assert_eq!(other.engine(&host, "red", "resp_1"), Some(EngineId(1)));
        assert_eq!(other.engine(&host, "blue", "resp_1"), None);
        // Engines are identified by name, not by index.
        let turned = kept(&host, &["b", "c"]);
        assert_eq!(turned.engine(&host, "red", "resp_1"), Some(EngineId(0)));
        assert_eq!(
            kept(&host, &["c", "d"]).engine(&host, "red", "resp_1"),
            None
        );
        other.keep(&host, "red", "resp_1", EngineId(0));
        assert_eq!(one.engine(&host, "red", "resp_1"), Some(EngineId(0)));
    }

    #[test]
    fn the_oldest_responses_are_forgotten_and_shared_data_stays_within_its_bound() {
        let host = ScriptedHost::default();
        let kept = kept(&host, &["a", "b"]);
        let id = |number: usize| format!("resp_{number}");
        for number in 0..20_000 {
            kept.keep(&host, "", &id(number), EngineId(1));
        }
        let bytes: usize = host.shared().values().map(|(value, _)| value.len()).sum();
        // With the number of uses.
        assert!(
            bytes <= PAGES * MAX_ENTRIES * ENTRY + size_of::<u64>(),
            "{bytes}"
        );
        assert_eq!(kept.engine(&host, "", &id(19_999)), Some(EngineId(1)));
        assert_eq!(kept.engine(&host, "", &id(0)), None);
    }

    #[test]
    fn a_page_that_somebody_else_wrote_and_a_proxy_that_refuses_cost_nothing() {
        let host = ScriptedHost::default();
        let kept = kept(&host, &["a", "b"]);
        for (value, _) in host.shared().values_mut() {
            *value = b"something else that is no entry".to_vec();
        }
        assert_eq!(kept.engine(&host, "", "resp_1"), None);
        kept.keep(&host, "", "resp_1", EngineId(1));
        assert_eq!(kept.engine(&host, "", "resp_1"), Some(EngineId(1)));
        host.refuse("shared_data");
        assert_eq!(kept.engine(&host, "", "resp_1"), None);
        kept.keep(&host, "", "resp_2", EngineId(1));
    }
}
