//! Empties what replaced configurations have left in the proxy's shared data, which lasts as long as the proxy.
//!
//! The keys of a configuration's data in shared data have a hash of the routes and the engines, whose addresses may
//! change often. Each plugin name has a list of the configurations that were loaded under it, the latest last:
//!
//! ```text
//!   foreword/rings/<plugin>   [audience, entries of its ring buffer, entries written when a configuration was last added] …
//! ```
//!
//! If a configuration comes that is not in the list, and the list is full, those are emptied and removed, from the oldest
//! on, whose ring buffer nobody has written to since the last one came.

use crate::agreement;
use crate::answers;
use crate::engines;
use crate::host::{Host, HostError};
use crate::swap;

/// A configuration whose data is in shared data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loaded {
    /// Hash of what decides which data a configuration uses.
    audience: u64,
    /// Number of entries in the ring buffer; 0 if workers share no updates.
    entries: u64,
    /// Number of entries that had been written to the ring buffer when a configuration was last added to the list.
    written: u64,
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
    let (list, _) = list.as_chunks::<8>();
    let (list, _) = list.as_chunks::<3>();
    let mut list: Vec<Loaded> = (list.iter())
        .map(|numbers| {
            let [audience, entries, written] = numbers.map(u64::from_le_bytes);
            Loaded {
                audience,
                entries,
                written,
            }
        })
        .collect();
    let written = |loaded: &Loaded| match narrow(loaded.entries) {
        0 => Ok(0),
        entries => agreement::written(host, &ring(loaded.audience), entries),
    };
    let mut new = Loaded {
        audience,
        entries: entries.into(),
        written: 0,
    };
    let is_new = |other: &Loaded| (other.audience, other.entries) == (audience, new.entries);
    if list.last().is_some_and(is_new) {
        return Ok(());
    }
    if let Some(at) = list.iter().position(is_new) {
        new = list.remove(at);
    } else {
        new.written = written(&new)?;
        let mut surplus = list.len().saturating_add(1).saturating_sub(MAX_LOADED);
        let mut left = Vec::with_capacity(list.len());
        for mut loaded in list {
            let written = written(&loaded)?;
            if surplus > 0 && written == loaded.written {
                surplus = surplus.saturating_sub(1);
                let ring = ring(loaded.audience);
                if loaded.entries > 0 {
                    agreement::empty(host, &ring, narrow(loaded.entries))?;
                }
                answers::empty(host, &ring)?;
                engines::empty_responses(host, &ring)?;
                continue;
            }
            loaded.written = written;
            left.push(loaded);
        }
        list = left;
    }
    list.push(new);
    let list: Vec<u8> = (list.iter())
        .flat_map(|loaded| swap::bytes([loaded.audience, loaded.entries, loaded.written]))
        .collect();
    host.set_shared_data(&key, &list, (number > 0).then_some(number))?;
    Ok(())
}

fn narrow(entries: u64) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}

/// The number of configurations of one plugin name beyond which replaced ones are emptied. The workers of a replaced
/// configuration end their requests with its data.
const MAX_LOADED: usize = 8;

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
        let mut agreement = Agreement::open(host, &ring(audience), 4).unwrap();
        for _ in 0..updates {
            assert_eq!(agreement.publish(host, b"an update"), Ok(true));
        }
    }

    /// The audiences whose ring buffers hold entries.
    fn used(host: &ScriptedHost) -> Vec<u64> {
        let mut used: Vec<u64> = (host.shared().iter())
            .filter(|(_, (value, _))| value.ends_with(b"an update"))
            .filter_map(|(key, _)| key.split('/').nth(3)?.parse().ok())
            .collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    #[test]
    fn what_replaced_configurations_left_is_emptied() {
        let host = ScriptedHost::default();
        let left = [
            format!("foreword/answers/1/{}/7", ring(0)),
            format!("foreword/responses/1/{}/7", ring(0)),
        ];
        for key in &left {
            host.set_shared_data(key, b"left", None).unwrap();
        }
        for audience in 0..20 {
            // On two workers.
            load(&host, audience, 6);
            load(&host, audience, 6);
            let oldest = (audience + 1).saturating_sub(MAX_LOADED as u64);
            assert_eq!(used(&host), (oldest..=audience).collect::<Vec<_>>());
        }
        for key in &left {
            assert_eq!(host.shared()[key].0, b"", "{key}");
        }
        // One that is emptied under a worker that goes on with it.
        let mut old = Agreement::open(&host, &ring(12), 4).unwrap();
        load(&host, 20, 1);
        assert_eq!(old.publish(&host, b"an update"), Ok(true));
        assert!(used(&host).contains(&12));
    }

    #[test]
    fn a_configuration_that_is_used_or_loaded_again_keeps_its_data() {
        let host = ScriptedHost::default();
        load(&host, 100, 1);
        let mut steady = Agreement::open(&host, &ring(100), 4).unwrap();
        load(&host, 101, 1);
        for audience in 0..30 {
            assert_eq!(steady.publish(&host, b"an update"), Ok(true));
            load(&host, 101, 0);
            load(&host, audience, 1);
            assert!(used(&host).contains(&100) && used(&host).contains(&101));
            assert!(used(&host).len() <= MAX_LOADED, "{:?}", used(&host));
        }
        // More that are all in use than the list has room for: none is emptied.
        let host = ScriptedHost::default();
        let names: Vec<u64> = (0..12).collect();
        for round in 0..3 {
            for &name in &names {
                load(&host, name, 1);
                for other in names
                    .iter()
                    .take_while(|other| round > 0 || **other <= name)
                {
                    let mut agreement = Agreement::open(&host, &ring(*other), 4).unwrap();
                    assert_eq!(agreement.publish(&host, b"an update"), Ok(true));
                }
            }
        }
        assert_eq!(used(&host), names);
    }
}
