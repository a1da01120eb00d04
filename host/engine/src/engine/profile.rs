//! Measurement of a backend's prefill cost, taken once and stored in a file.
//!
//! The backend is measured before the engine starts on it; its pages are overwritten. The table grows by a column or a
//! row, whichever is expected to be cheaper, for as long as the time budget allows. So a slow machine gets a smaller
//! table, not a later start:
//!
//! ```text
//!             1  16  64  256 …  new tokens, up to twice a step
//!     0       1   2   4   6
//!   256       3   3   4   6      numbers: the round in which a point was measured
//!  1024       5   5   5   6
//! ```
//!
//! Prompts longer than a step are computed in chunks, as the engine does.

use crate::TokenId;
use crate::backend::{Backend, BackendError, Output, PageId, Segment, Step};
use crate::cost::{CostError, CostProfile};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Options of a measurement of the backend's prefill cost.
#[derive(Clone, Copy, Debug)]
pub struct ProfileOptions {
    /// Time to spend on the measurement. It can be exceeded if a cost was underestimated, and two points of the table
    /// are always measured.
    pub budget: Duration,
    /// Maximum number of tokens computed in one step; longer prompts are measured in chunks of this.
    pub max_step_tokens: u32,
}

/// The model and the machine for which a stored profile of prefill costs is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileKey {
    /// Hash of the model, the backend and the page size; the disk tier uses the same hash.
    pub identity: u128,
    /// Description of the machine, such as kind of backend, threads and sizes of steps; compared as a whole.
    pub machine: String,
}

/// Where a profile of prefill costs came from: a file, or a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileOrigin {
    /// The profile was loaded from the file.
    Loaded,
    /// The profile was measured now, because there was no file or the file was unusable.
    Measured {
        /// The reason that the existing file was not used; `None` if there was no file.
        discarded: Option<String>,
    },
}

/// The reason that no profile of prefill costs could be loaded or measured.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path of the file that could not be read or written.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The backend failed during the measurement.
    #[error("cannot measure the backend: {0}")]
    Backend(#[from] BackendError),
    /// The measured times do not form a valid profile.
    #[error(transparent)]
    Cost(#[from] CostError),
}

/// Returns the profile in the file at `path` if it was measured for `key`; otherwise measures one and stores it there.
/// Without a path, measures one and does not store it.
///
/// # Errors
/// [`ProfileError`] when the file cannot be read or written, the backend fails, or the measurements are unusable.
pub fn load_or_measure(
    path: Option<&Path>,
    key: &ProfileKey,
    backend: &mut dyn Backend,
    options: &ProfileOptions,
) -> Result<(CostProfile, ProfileOrigin), ProfileError> {
    let discarded = match path.map(|path| load(path, key)).transpose()? {
        Some(StoredProfile::Profile(profile)) => return Ok((profile, ProfileOrigin::Loaded)),
        Some(StoredProfile::Unusable(reason)) => Some(reason),
        Some(StoredProfile::Nothing) | None => None,
    };
    // A file that cannot be written is reported before the measurement, not after it.
    let file = path.map(Unfinished::create).transpose()?;
    let start = Instant::now();
    let profile = measure(backend, options, &mut || start.elapsed())?;
    if let Some(file) = file {
        file.finish(key, &profile)?;
    }
    Ok((profile, ProfileOrigin::Measured { discarded }))
}

/// Measures the seconds that `backend` takes for prefills, by `now`, a monotonic clock. Overwrites the backend's pages
/// of KV state.
///
/// # Errors
/// [`ProfileError`] when the backend fails or the measurements are unusable.
pub fn measure(
    backend: &mut dyn Backend,
    options: &ProfileOptions,
    now: &mut dyn FnMut() -> Duration,
) -> Result<CostProfile, ProfileError> {
    let shape = backend.shape();
    let capacity = shape.longest_sequence();
    let step = options.max_step_tokens.max(1);
    let mut bench = Bench {
        backend,
        now,
        step,
        logits: Vec::new(),
    };
    let most_new = step.saturating_mul(2).min(capacity);
    let mut new_axis = axis(&[1, 16], 64, most_new).into_iter();
    let mut cached_axis = axis(&[0], 256, capacity - most_new).into_iter().skip(1);

    let begin = (bench.now)();
    // The first step also allocates, so it is not counted.
    bench.seconds(0, 1)?;
    let mut cached = vec![0];
    let mut new: Vec<u32> = new_axis.by_ref().take(2).collect();
    // Seconds by row.
    let mut table = vec![bench.row(0, &new)?];
    let (mut next_new, mut next_cached) = (new_axis.next(), cached_axis.next());
    loop {
        let spent = (bench.now)().saturating_sub(begin).as_secs_f64();
        let left = options.budget.as_secs_f64() - spent;
        let last_new = new[new.len() - 1];
        // Assumes twice the work for the same tokens, which leaves a margin for attention.
        let column = next_new.map(|next| {
            let last: f64 = table.iter().filter_map(|row| row.last()).sum();
            (2.0 * last * f64::from(next) / f64::from(last_new), next)
        });
        let row = next_cached.map(|next| {
            let last: f64 = table.last().map_or(0.0, |row| row.iter().sum());
            (2.0 * last, next)
        });
        let column = column.filter(|(cost, _)| *cost <= left);
        let row = row.filter(|(cost, _)| *cost <= left);
        if let Some((cost, next)) = column
            && row.is_none_or(|(other, _)| cost <= other)
        {
            for (row, &cached) in table.iter_mut().zip(&cached) {
                row.push(bench.seconds(cached, next)?);
            }
            new.push(next);
            next_new = new_axis.next();
        } else if let Some((_, next)) = row {
            table.push(bench.row(next, &new)?);
            cached.push(next);
            next_cached = cached_axis.next();
        } else {
            break;
        }
    }
    Ok(CostProfile::new(cached, new, table.concat())?)
}

/// Returns the numbers of tokens at which to measure along one axis, ascending: `start`, then `from`, `4 * from`,
/// `16 * from` and so on below `end`, then `end`. The first number of `start` is included even if it is not below
/// `end`.
fn axis(start: &[u32], from: u32, end: u32) -> Vec<u32> {
    let powers = std::iter::successors(Some(from), |value| value.checked_mul(4));
    let mut axis: Vec<u32> = start.iter().copied().chain(powers.take(16)).collect();
    axis.retain(|value| *value < end || *value == start[0]);
    if end > axis[axis.len() - 1] {
        axis.push(end);
    }
    axis
}

struct Bench<'a> {
    backend: &'a mut dyn Backend,
    now: &'a mut dyn FnMut() -> Duration,
    step: u32,
    logits: Vec<f32>,
}

impl Bench<'_> {
    fn row(&mut self, cached: u32, new: &[u32]) -> Result<Vec<f64>, BackendError> {
        new.iter().map(|&new| self.seconds(cached, new)).collect()
    }

    /// Measures the seconds to compute `new` tokens after `cached` ones. The pages of the cached tokens are not filled
    /// first; they hold whatever was there before.
    fn seconds(&mut self, cached: u32, new: u32) -> Result<f64, BackendError> {
        let vocabulary = self.backend.shape().vocabulary.max(1);
        let page_tokens = self.backend.shape().page_tokens.max(1);
        let end = cached + new;
        let mut elapsed = Duration::ZERO;
        let mut start = cached;
        while start < end {
            let stop = start.saturating_add(self.step).min(end);
            let tokens = start..stop;
            let segment = Segment {
                tokens: tokens
                    .map(|at| at.wrapping_mul(2_654_435_761) % vocabulary as TokenId)
                    .collect(),
                start,
                pages: (0..stop.div_ceil(page_tokens)).map(PageId).collect(),
                output: if stop == end {
                    Output::Last
                } else {
                    Output::None
                },
            };
            let step = Step {
                segments: vec![segment],
                ..Step::default()
            };
            let before = (self.now)();
            self.backend.run(&step, &mut self.logits)?;
            elapsed += (self.now)().saturating_sub(before);
            start = stop;
        }
        // A coarse clock may not have advanced.
        Ok(elapsed.max(Duration::from_nanos(1)).as_secs_f64())
    }
}

/// A profile of prefill costs as stored in its file, with what it was measured for.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// Version of the file format; the present one is [`FORMAT`].
    format: u32,
    /// The [`ProfileKey::identity`] that the profile was measured for, in hexadecimal digits.
    identity: String,
    /// The [`ProfileKey::machine`] that the profile was measured on.
    machine: String,
    profile: CostProfile,
}

const FORMAT: u32 = 1;

enum StoredProfile {
    Nothing,
    Unusable(String),
    Profile(CostProfile),
}

fn load(path: &Path, key: &ProfileKey) -> Result<StoredProfile, ProfileError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(StoredProfile::Nothing),
        Err(source) => {
            let path = path.to_owned();
            return Err(ProfileError::Io { path, source });
        }
    };
    let stored: Stored = match serde_json::from_str(&text) {
        Ok(stored) => stored,
        Err(error) => return Ok(StoredProfile::Unusable(error.to_string())),
    };
    let unusable = |reason: String| Ok(StoredProfile::Unusable(reason));
    if stored.format != FORMAT {
        return unusable(format!(
            "its format is {}, this program's {FORMAT}",
            stored.format
        ));
    }
    if stored.identity != identity(key) {
        return unusable("it was measured with another model, backend or page size".to_owned());
    }
    if stored.machine != key.machine {
        let (found, wanted) = (stored.machine, &key.machine);
        return unusable(format!("it was measured on {found:?}, not {wanted:?}"));
    }
    Ok(StoredProfile::Profile(stored.profile))
}

/// The file of a profile under a temporary name, until it is complete and renamed to `path`. Dropping it removes the
/// file that has the temporary name.
struct Unfinished<'p> {
    path: &'p Path,
    /// The temporary name: `path` followed by this process's id.
    name: PathBuf,
}

impl<'p> Unfinished<'p> {
    fn create(path: &'p Path) -> Result<Self, ProfileError> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let name = PathBuf::from(name);
        let file = Self { path, name };
        std::fs::write(&file.name, "").map_err(|source| file.failed(source))?;
        Ok(file)
    }

    /// Writes the profile to the temporary file and renames it to `path`.
    fn finish(self, key: &ProfileKey, profile: &CostProfile) -> Result<(), ProfileError> {
        let stored = Stored {
            format: FORMAT,
            identity: identity(key),
            machine: key.machine.clone(),
            profile: profile.clone(),
        };
        serde_json::to_string_pretty(&stored)
            .map_err(io::Error::from)
            .and_then(|text| std::fs::write(&self.name, text))
            .and_then(|()| std::fs::rename(&self.name, self.path))
            .map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> ProfileError {
        let path = self.path.to_owned();
        ProfileError::Io { path, source }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // After the renaming there is nothing to remove.
        let _ = std::fs::remove_file(&self.name);
    }
}

fn identity(key: &ProfileKey) -> String {
    format!("{:032x}", key.identity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendShape;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    const PAGE_TOKENS: u32 = 16;
    const OPTIONS: ProfileOptions = ProfileOptions {
        budget: Duration::from_secs(4),
        max_step_tokens: 128,
    };

    /// A backend that computes nothing and advances its own clock instead.
    struct Slow {
        /// The backend's clock in nanoseconds.
        clock: Arc<AtomicU64>,
        per_token: u64,
        per_pair: u64,
        steps: u64,
        pages: u32,
        fails: bool,
    }

    impl Slow {
        fn new(per_token: u64, per_pair: u64) -> Self {
            Self {
                clock: Arc::default(),
                per_token,
                per_pair,
                steps: 0,
                pages: 256,
                fails: false,
            }
        }

        fn measure(&mut self) -> Result<CostProfile, ProfileError> {
            let clock = self.clock.clone();
            let mut now = || Duration::from_nanos(clock.load(Ordering::Relaxed));
            measure(self, &OPTIONS, &mut now)
        }
    }

    impl Backend for Slow {
        fn shape(&self) -> BackendShape {
            BackendShape {
                vocabulary: 7,
                max_positions: 1 << 20,
                page_tokens: PAGE_TOKENS,
                pages: self.pages,
                host_pages: 0,
                page_bytes: 0,
                draws: false,
            }
        }

        fn run(&mut self, step: &Step, _: &mut Vec<f32>) -> Result<(), BackendError> {
            if self.fails {
                return Err(BackendError::Device("no luck".to_owned()));
            }
            self.steps += 1;
            for segment in &step.segments {
                let end = segment.start + segment.tokens.len() as u32;
                assert!(!segment.tokens.is_empty() && segment.tokens.len() <= 128);
                assert!(segment.tokens.iter().all(|token| *token < 7));
                assert!(segment.pages.len() as u32 * PAGE_TOKENS >= end);
                assert!(segment.pages.iter().all(|page| page.0 < self.pages));
                for position in segment.start..end {
                    let time = self.per_token + self.per_pair * u64::from(position);
                    self.clock.fetch_add(time, Ordering::Relaxed);
                }
            }
            Ok(())
        }

        fn copy_slots(&mut self, _: PageId, _: PageId, _: u32) -> Result<(), BackendError> {
            unreachable!("measuring copies nothing")
        }
    }

    #[test]
    fn a_fast_backend_is_measured_up_to_its_pool_and_to_two_steps() {
        let mut backend = Slow::new(1000, 10);
        let profile = backend.measure().unwrap();
        for (cached, new) in [(0, 1), (0, 256), (1024, 64), (256, 16)] {
            let exact = (cached..cached + new).map(|position| 1000 + 10 * u64::from(position));
            let exact = exact.sum::<u64>() as f64 / 1e9;
            let found = profile.seconds(cached, new);
            assert!(
                (found - exact).abs() < 1e-9,
                "{cached} {new}: {found}, not {exact}"
            );
        }
        // The new tokens are 1, 16, 64 and 256; the cached ones are 0, 256, 1,024 and the most that leave room for two
        // steps in a pool of 4,096.
        assert_eq!(profile.points(), 16);
    }

    #[test]
    fn a_slow_backend_is_measured_at_fewer_points_within_the_time() {
        let mut points = usize::MAX;
        for per_token in [1_000_000, 10_000_000, 100_000_000] {
            let mut backend = Slow::new(per_token, per_token / 10_000);
            let profile = backend.measure().unwrap();
            assert!(profile.points() <= points);
            points = profile.points();
            let spent = Duration::from_nanos(backend.clock.load(Ordering::Relaxed));
            let least = Duration::from_nanos(18 * (per_token + per_token / 500));
            assert!(spent <= OPTIONS.budget.max(least), "{spent:?}");
        }
        assert_eq!(points, 2);
    }

    #[test]
    fn a_pool_of_one_page_is_enough() {
        let mut backend = Slow::new(1000, 0);
        backend.pages = 1;
        let profile = backend.measure().unwrap();
        assert!((profile.seconds(0, 16) - 16e-6).abs() < 1e-12);
    }

    #[test]
    fn a_profile_is_measured_once_and_again_when_it_is_of_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.json");
        let key = ProfileKey {
            identity: 5,
            machine: "2 threads".to_owned(),
        };
        let run = Rc::new(Cell::new(0));
        let load = |key: &ProfileKey| {
            // With real time the measured values are arbitrary.
            let mut backend = Slow::new(0, 0);
            let outcome = load_or_measure(Some(&path), key, &mut backend, &OPTIONS);
            run.set(backend.steps);
            outcome.unwrap()
        };
        let (first, origin) = load(&key);
        assert_eq!(origin, ProfileOrigin::Measured { discarded: None });
        assert!(run.get() > 0);
        let (second, origin) = load(&key);
        assert_eq!((origin, run.get()), (ProfileOrigin::Loaded, 0));
        assert_eq!(second.points(), first.points());
        assert!((second.seconds(0, 16) / first.seconds(0, 16) - 1.0).abs() < 1e-12);
        let others = [
            ProfileKey {
                identity: 6,
                ..key.clone()
            },
            ProfileKey {
                identity: 6,
                machine: "3 threads".to_owned(),
            },
        ];
        for (other, expected) in others.iter().zip(["another model", "not \"3 threads\""]) {
            match load(other).1 {
                ProfileOrigin::Measured {
                    discarded: Some(reason),
                } => {
                    assert!(reason.contains(expected), "{reason}");
                }
                origin => panic!("{origin:?}"),
            }
        }
        std::fs::write(&path, "{}").unwrap();
        let (_, origin) = load(&key);
        assert!(matches!(
            origin,
            ProfileOrigin::Measured { discarded: Some(_) }
        ));
        assert_eq!(load(&key).1, ProfileOrigin::Loaded);
    }

    #[test]
    fn what_fails_is_said() {
        let mut backend = Slow::new(1, 1);
        backend.fails = true;
        let error = backend.measure().unwrap_err().to_string();
        assert_eq!(error, "cannot measure the backend: device failed: no luck");
        let key = ProfileKey {
            identity: 5,
            machine: String::new(),
        };
        let path = tempfile::tempdir()
            .unwrap()
            .path()
            .join("gone")
            .join("profile.json");
        let mut backend = Slow::new(1, 1);
        let error = load_or_measure(Some(&path), &key, &mut backend, &OPTIONS).unwrap_err();
        assert!(error.to_string().contains("profile.json"), "{error}");
        assert_eq!(backend.steps, 0, "nothing is measured that cannot be kept");
        let folder = tempfile::tempdir().unwrap();
        backend.fails = true;
        let path = folder.path().join("profile.json");
        load_or_measure(Some(&path), &key, &mut backend, &OPTIONS).unwrap_err();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
