//! Empties what replaced configurations have left in the proxy's shared data, which lasts as long as the proxy.
//!
//! The keys of a configuration's data in shared data have a hash of the routes and the engines, whose addresses may
//! change often. Each plugin name has a list of the configurations that were loaded under it, the latest last:
//!
//! ```text
//!   foreword/rings/<plugin>   [audience, entries of its ring buffer, uses, state] …
//! ```
//!
//! Adding a configuration empties the data of those that are not among the last [`MAX_LOADED`], if no worker has used it
//! since the two before were added. They stay in the list, since their workers may go on.

use crate::agreement;
use crate::answers;
use crate::engines;
use crate::host::{Host, HostError};
use crate::swap;

/// A configuration whose data is in shared data.
#[derive(Clone, Copy, Debug, Default)]
struct Loaded {
    /// Hash of what decides which data a configuration uses.
    audience: u64,
    /// Number of entries in the ring buffer; 0 if workers share no updates.
    entries: u64,
    /// Number of uses of the data (see [`uses`]) at the time at which a configuration was last added to the list.
    uses: u64,
    /// Number of configurations that have been added since the data was last used, at most [`IDLE`], or [`EMPTIED`].
    idle: u64,
}

/// Records that a configuration of the plugin `plugin` was loaded, and empties the data of replaced ones. `ring` returns
/// the name of an audience's ring buffer.
pub(super) fn retire(
    host: &impl Host,
    plugin: &str,
    audience: u64,
    entries: u32,
    ring: impl Fn(u64) -> String,
) -> Result<(), HostError> {
    let key = format!("foreword/rings/{plugin}");
    let (list, number) = host.shared_data(&key)?.unwrap_or_default();
    let mut list = read(&list);
    let is_new = |other: &Loaded| (other.audience, other.entries) == (audience, entries.into());
    let last = match list.iter().position(is_new) {
        Some(at) if at.saturating_add(1) == list.len() => return Ok(()),
        Some(at) => list.remove(at),
        None => {
            let newest = list.len().saturating_sub(MAX_LOADED.saturating_sub(1));
            let audiences: Vec<u64> = list.iter().map(|loaded| loaded.audience).collect();
            let shared = |loaded: &Loaded| {
                let same = audiences.iter().filter(|it| **it == loaded.audience);
                audience == loaded.audience || same.count() > 1
            };
            for (at, loaded) in list.iter_mut().enumerate() {
                let uses = uses(host, &ring(loaded.audience), loaded.entries)?;
                loaded.idle = match (uses == loaded.uses, loaded.idle) {
                    (false, _) => 0,
                    (true, EMPTIED) => EMPTIED,
                    (true, idle) => idle.saturating_add(1).min(IDLE),
                };
                loaded.uses = uses;
                if at < newest && loaded.idle == IDLE {
                    let ring = ring(loaded.audience);
                    empty(host, &ring, loaded.entries, shared(loaded))?;
                    loaded.idle = EMPTIED;
                }
            }
            let surplus = list.len().saturating_sub(MAX_LISTED.saturating_sub(1));
            list.drain(..surplus);
            Loaded {
                audience,
                entries: entries.into(),
                uses: uses(host, &ring(audience), entries.into())?,
                idle: 0,
            }
        }
    };
    list.push(last);
    let list: Vec<u8> = (list.iter())
        .flat_map(|it| swap::bytes([it.audience, it.entries, it.uses, it.idle]))
        .collect();
    host.set_shared_data(&key, &list, (number > 0).then_some(number))?;
    Ok(())
}

fn read(list: &[u8]) -> Vec<Loaded> {
    let (numbers, _) = list.as_chunks::<8>();
    let (list, _) = numbers.as_chunks::<4>();
    let list = list.iter().map(|numbers| {
        let [audience, entries, uses, idle] = numbers.map(u64::from_le_bytes);
        Loaded {
            audience,
            entries,
            uses,
            idle,
        }
    });
    list.collect()
}

/// Returns how often the data under the ring buffer name `ring` was used: updates published, answers and responses
/// stored.
fn uses(host: &impl Host, ring: &str, entries: u64) -> Result<u64, HostError> {
    let published = match narrow(entries) {
        0 => 0,
        entries => agreement::written(host, ring, entries)?,
    };
    Ok(published.wrapping_add(swap::uses(host, ring)?))
}

/// Empties the data under the ring buffer name `ring`: of data that other configurations of the audience use
/// (`is_shared`), the ring buffer alone.
fn empty(host: &impl Host, ring: &str, entries: u64, is_shared: bool) -> Result<(), HostError> {
    if entries > 0 {
        agreement::empty(host, ring, narrow(entries))?;
    }
    if is_shared {
        return Ok(());
    }
    answers::empty(host, ring)?;
    engines::empty_responses(host, ring)
}

fn narrow(entries: u64) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}

/// The number of configurations of one plugin name, the latest, that are never emptied. The workers of a replaced
/// configuration end their requests with its data.
const MAX_LOADED: usize = 8;
/// The maximum number of configurations in the list.
const MAX_LISTED: usize = 64;
/// The number of additions without a use from which on data may be emptied.
const IDLE: u64 = 2;
/// [`Loaded::idle`] of data that was emptied and has not been used since.
const EMPTIED: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agreement::Agreement;
    use crate::tests::scripted::ScriptedHost;

    fn ring(audience: u64) -> String {
        format!("of/{audience}")
    }

    /// Loads a configuration and publishes so many updates.
    fn load(host: &ScriptedHost, audience: u64, updates: u32) {
        retire(host, "p", audience, 4, ring).unwrap();
        publish(host, audience, updates);
    }

    fn publish(host: &ScriptedHost, audience: u64, updates: u32) {
        let mut agreement = Agreement::open(host, &ring(audience), 4).unwrap();
        for _ in 0..updates {
            assert_eq!(agreement.publish(host, b"an update"), Ok(true));
        }
    }

    /// Stores an answer and a response under the names that their modules use.
    fn store(host: &ScriptedHost, audience: u64) {
        for what in ["answers", "responses"] {
            let key = format!("foreword/{what}/1/{}/7", ring(audience));
            host.set_shared_data(&key, b"an update", None).unwrap();
        }
        swap::count_use(host, &ring(audience)).unwrap();
    }

    /// The audiences that have data, of these kinds together.
    fn used(host: &ScriptedHost) -> Vec<u64> {
        let mut used: Vec<u64> = (host.shared().iter())
            .filter(|(_, (value, _))| value.ends_with(b"an update"))
            .filter_map(|(key, _)| key.split("of/").nth(1)?.split('/').next()?.parse().ok())
            .collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    #[test]
    fn what_replaced_configurations_left_is_emptied() {
        let host = ScriptedHost::default();
        for audience in 0..80 {
            // On two workers.
            load(&host, audience, 6);
            load(&host, audience, 6);
            store(&host, audience);
            let oldest = (audience + 1).saturating_sub(MAX_LOADED as u64);
            assert_eq!(used(&host), (oldest..=audience).collect::<Vec<_>>());
        }
        // Emptied ones under workers that go on with them for a while.
        publish(&host, 70, 1);
        store(&host, 71);
        for audience in 80..83 {
            load(&host, audience, 1);
            assert!(audience == 82 || (used(&host).contains(&70) && used(&host).contains(&71)));
        }
        assert_eq!(used(&host), (75..83).collect::<Vec<_>>());
    }

    #[test]
    fn a_configuration_that_is_used_or_loaded_again_keeps_its_data() {
        let host = ScriptedHost::default();
        for audience in [100, 101, 102] {
            load(&host, audience, 1);
        }
        for audience in 0..30 {
            // One by updates, one by answers alone, one by being loaded.
            publish(&host, 100, 1);
            store(&host, 101);
            load(&host, 102, 0);
            load(&host, audience, 1);
            for steady in [100, 101, 102] {
                assert!(used(&host).contains(&steady), "{steady}, {audience}");
            }
            assert!(used(&host).len() <= MAX_LOADED + 2, "{:?}", used(&host));
        }
        // Many that are replaced at once, and whose workers had no request in between.
        let host = ScriptedHost::default();
        for audience in 0..9 {
            load(&host, audience, 1);
            publish(&host, 0, 1);
        }
        load(&host, 9, 0);
        load(&host, 10, 0);
        assert!(used(&host).contains(&0));
    }

    #[test]
    fn answers_of_an_audience_with_another_ring_stay() {
        let host = ScriptedHost::default();
        load(&host, 1, 1);
        retire(&host, "p", 1, 0, ring).unwrap();
        store(&host, 1);
        for audience in 2..7 {
            load(&host, audience, 1);
        }
        for audience in 20..24 {
            retire(&host, "p", 1, 0, ring).unwrap();
            load(&host, audience, 1);
        }
        let left = format!("foreword/answers/1/{}/7", ring(1));
        assert_eq!(host.shared()[&left].0, b"an update");
        assert_eq!(host.shared()[&format!("foreword/1/{}/4/0", ring(1))].0, b"");
    }
}
