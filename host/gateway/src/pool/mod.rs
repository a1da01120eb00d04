//! The pool of an endpoint picker: its endpoints and their load.
//!
//! ```text
//!   source ── addresses ──▶ places  0  10.0.0.1:8000    ◀── load ── scrape
//!   (a file, DNS)                   1  10.0.0.2:8000
//!                                   2  (10.0.0.3:8000 was here)
//!                                   …  255
//!                              │
//!   request, its subset ─▶ EnginePool ─▶ the filter chooses ─▶ x-gateway-destination-endpoint
//! ```
//!
//! An endpoint keeps its place while it is in the pool, and gets it back if it returns. A place's number is the engine
//! id under which the filter records cache contents, so changes of other endpoints lose nothing. A new endpoint takes
//! an unused place, or else the one vacated longest ago, after the filter has forgotten its contents.
//!
//! The core chooses the endpoint for a request.

pub(crate) mod scrape;
pub mod source;
pub(crate) mod subset;

use parking_lot::RwLock;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use foreword_filter::{EngineId, EnginePool, MAX_ENGINES, PoolEngine};
use tokio::sync::watch;

use self::source::Source;
use self::subset::Subset;

/// Maximum number of endpoints in a pool: the number of engines for which the core keeps trees.
pub const MAX_ENDPOINTS: usize = MAX_ENGINES as usize;

/// The configuration of an endpoint picker.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// The source of the endpoint list.
    pub source: Source,
    /// Maximum number of further addresses named after the chosen one, for the gateway's retries.
    pub fallbacks: usize,
    /// Path of the endpoints' metrics; `None` if they are not scraped.
    pub metrics_path: Option<String>,
    /// Interval between scrapes; a load expires after five intervals.
    pub scrape_interval: Duration,
    /// An endpoint with more waiting requests is saturated.
    pub max_waiting: u64,
    /// An endpoint that uses a larger fraction (0 to 1) of its KV cache is saturated.
    pub max_kv_usage: f64,
    /// Names of objectives whose requests are refused while all endpoints are saturated.
    pub sheddable: Vec<String>,
}

impl PoolOptions {
    /// Returns the default options for `source`.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            fallbacks: 2,
            metrics_path: Some("/metrics".to_owned()),
            scrape_interval: Duration::from_secs(1),
            max_waiting: 5,
            max_kv_usage: 0.8,
            sheddable: Vec::new(),
        }
    }
}

/// An endpoint of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Address for requests.
    pub address: SocketAddr,
    /// Address of the metrics.
    pub metrics: SocketAddr,
}

impl Endpoint {
    /// Returns an endpoint with requests and metrics at the same address.
    pub fn at(address: SocketAddr) -> Self {
        let metrics = address;
        Self { address, metrics }
    }
}

/// The load that an endpoint's metrics report.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Load {
    /// Requests waiting at the endpoint.
    pub(crate) waiting: u64,
    /// Requests running on the endpoint.
    pub(crate) running: u64,
    /// The used fraction of the KV cache, 0 to 1.
    pub(crate) kv_usage: f64,
}

/// The endpoints from which an endpoint picker chooses, and their loads.
pub struct Pool {
    options: PoolOptions,
    places: RwLock<Places>,
    /// True once the endpoints are known; it stays true.
    is_known: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Places {
    /// Current and former endpoints, at most [`MAX_ENDPOINTS`]; the index is the engine id.
    places: Vec<Place>,
    /// Number of changes so far.
    changes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    endpoint: Endpoint,
    /// Value of [`Places::changes`] when the endpoint left; `None` while it is in the pool.
    left: Option<u64>,
    /// Number of requests sent to the endpoint.
    picks: u64,
    load: Option<Measured>,
}

/// A load, with the time when its scrape began.
#[derive(Debug, Clone, Copy)]
struct Measured {
    load: Load,
    at: Instant,
    /// Number of requests sent to the endpoint before the scrape.
    picks: u64,
}

/// A planned change of the pool's endpoints.
#[derive(Debug)]
pub(crate) struct Change {
    places: Vec<Place>,
    /// True if an endpoint's metrics are now at another address.
    moved: bool,
    /// Engine ids reused for other endpoints. Before the change, the filter must forget what it recorded under them.
    pub(crate) renewed: Vec<EngineId>,
    /// Number of endpoints that join the pool.
    pub(crate) joined: usize,
    /// Number of endpoints that leave the pool.
    pub(crate) left: usize,
}

impl Change {
    /// Returns whether the change changes nothing.
    pub(crate) fn is_none(&self) -> bool {
        !self.moved && self.joined == 0 && self.left == 0
    }
}

impl Pool {
    /// Returns a pool whose endpoints are not known yet.
    pub fn new(options: PoolOptions) -> Self {
        Self {
            options,
            places: RwLock::default(),
            is_known: watch::Sender::new(false),
        }
    }

    pub(crate) fn options(&self) -> &PoolOptions {
        &self.options
    }

    /// Returns a receiver of a flag that becomes true when the endpoints are first known, and then stays true.
    pub(crate) fn is_known(&self) -> watch::Receiver<bool> {
        self.is_known.subscribe()
    }

    /// Plans the change of the pool's endpoints to the first [`MAX_ENDPOINTS`] of `endpoints`. Only one task may make
    /// changes.
    pub(crate) fn plan(&self, endpoints: &[Endpoint]) -> Change {
        let endpoints = endpoints.get(..MAX_ENDPOINTS).unwrap_or(endpoints);
        let state = self.places.read();
        let mut change = Change {
            places: state.places.clone(),
            moved: false,
            renewed: Vec::new(),
            joined: 0,
            left: 0,
        };
        for place in &mut change.places {
            let mut listed = endpoints.iter();
            let stays = listed.find(|endpoint| endpoint.address == place.endpoint.address);
            match (stays, place.left) {
                (Some(endpoint), left) => {
                    change.moved |= place.endpoint != *endpoint;
                    place.endpoint = *endpoint;
                    place.left = None;
                    if left.is_some() {
                        place.load = None;
                        change.joined += 1;
                    }
                }
                (None, None) => {
                    place.left = Some(state.changes);
                    change.left += 1;
                }
                (None, Some(_)) => {}
            }
        }
        for endpoint in endpoints {
            let mut known = change.places.iter();
            if known.any(|place| place.endpoint.address == endpoint.address) {
                continue;
            }
            change.joined += 1;
            let new = Place {
                endpoint: *endpoint,
                left: None,
                picks: 0,
                load: None,
            };
            if change.places.len() < MAX_ENDPOINTS {
                change.places.push(new);
                continue;
            }
            let free = change.places.iter_mut().zip(0..);
            let free = free.filter(|(place, _)| place.left.is_some());
            if let Some((place, id)) = free.min_by_key(|(place, _)| place.left) {
                *place = new;
                change.renewed.push(EngineId(id));
            }
        }
        change
    }

    /// Applies a planned change. From then on the pool's endpoints count as known.
    pub(crate) fn make(&self, change: Change) {
        let mut state = self.places.write();
        let mut places = change.places;
        // Keep loads and counts that changed since the plan.
        for (place, old) in places.iter_mut().zip(&state.places) {
            if place.endpoint.address == old.endpoint.address && old.left.is_none() {
                place.load = old.load;
                place.picks = old.picks;
            }
        }
        state.places = places;
        state.changes += 1;
        drop(state);
        self.is_known.send_replace(true);
    }

    /// Returns the current endpoints, each with the number of requests sent to it.
    pub(crate) fn endpoints(&self) -> Vec<(Endpoint, u64)> {
        let state = self.places.read();
        let members = state.places.iter().filter(|place| place.left.is_none());
        members.map(|place| (place.endpoint, place.picks)).collect()
    }

    /// Records an endpoint's load; `at` and `picks` are the time and its number of requests when the scrape began.
    pub(crate) fn report(&self, address: SocketAddr, load: Load, at: Instant, picks: u64) {
        self.change(address, |place| {
            place.load = Some(Measured { load, at, picks });
        });
    }

    /// Counts a request sent to an endpoint.
    pub(crate) fn picked(&self, address: SocketAddr) {
        self.change(address, |place| place.picks = place.picks.wrapping_add(1));
    }

    fn change(&self, address: SocketAddr, change: impl FnOnce(&mut Place)) {
        let mut state = self.places.write();
        let mut members = state.places.iter_mut();
        let place = members.find(|place| place.endpoint.address == address && place.left.is_none());
        if let Some(place) = place {
            change(place);
        }
    }

    /// Returns the endpoints with their loads at `now`, for the core's choice. Those outside `subset` are not eligible.
    pub(crate) fn view(&self, subset: Option<&Subset>, now: Instant) -> EnginePool {
        let state = self.places.read();
        let stale = self.options.scrape_interval.saturating_mul(STALE_INTERVALS);
        let members = state.places.iter().zip((0..).map(EngineId));
        let members = members.filter(|(place, _)| place.left.is_none());
        let engines = members.map(|(place, engine)| {
            let address = place.endpoint.address;
            let measured = place.load;
            let measured = measured.filter(|it| now.saturating_duration_since(it.at) <= stale);
            // An endpoint with an unknown load counts as idle.
            let load = measured.map_or(Load::default(), |it| it.load);
            // Requests sent since the scrape count as running; otherwise one endpoint would get all until the next.
            let since = measured.map_or(0, |it| place.picks.wrapping_sub(it.picks));
            PoolEngine {
                engine,
                address,
                is_eligible: subset.is_none_or(|subset| subset.holds(address)),
                is_saturated: load.waiting > self.options.max_waiting
                    || load.kv_usage > self.options.max_kv_usage,
                waiting: load.waiting,
                running: load.running.saturating_add(since),
            }
        });
        EnginePool {
            engines: engines.collect(),
            fallbacks: self.options.fallbacks,
        }
    }
}

/// Number of scrape intervals after which a load expires.
const STALE_INTERVALS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(number: usize) -> Endpoint {
        Endpoint::at(
            format!("10.0.{}.{}:8000", number / 200, number % 200)
                .parse()
                .unwrap(),
        )
    }

    fn pool() -> Pool {
        Pool::new(PoolOptions::new(Source::File("endpoints.yaml".into())))
    }

    /// Changes the pool to these endpoints; returns the reused places.
    fn change(pool: &Pool, numbers: &[usize]) -> Vec<u16> {
        let endpoints: Vec<Endpoint> = numbers.iter().map(|number| endpoint(*number)).collect();
        let change = pool.plan(&endpoints);
        let renewed = change.renewed.iter().map(|id| id.0).collect();
        pool.make(change);
        renewed
    }

    /// The place of each endpoint.
    fn places(pool: &Pool) -> Vec<(u16, SocketAddr)> {
        let view = pool.view(None, Instant::now());
        let engines = view.engines.iter();
        engines.map(|it| (it.engine.0, it.address)).collect()
    }

    #[test]
    fn an_endpoint_keeps_its_place_and_gets_it_back() {
        let pool = pool();
        assert!(!*pool.is_known().borrow());
        change(&pool, &[1, 2, 3]);
        assert!(*pool.is_known().borrow());
        let before = places(&pool);
        change(&pool, &[3, 1]);
        assert_eq!(places(&pool), [before[0], before[2]]);
        // A vacated place is not reused while there are unused ones.
        assert_eq!(change(&pool, &[9, 3, 1]), [0; 0]);
        assert_eq!(places(&pool)[2], (3, endpoint(9).address));
        change(&pool, &[3, 2, 1, 9]);
        assert_eq!(places(&pool)[..3], before);
        change(&pool, &[]);
        assert_eq!(places(&pool), []);
    }

    #[test]
    fn when_all_places_were_taken_the_one_left_longest_ago_is_renewed() {
        let pool = pool();
        let all: Vec<usize> = (0..MAX_ENDPOINTS).collect();
        change(&pool, &all);
        // Endpoint 5 leaves first, then 2.
        let without_5: Vec<usize> = all.iter().copied().filter(|it| *it != 5).collect();
        change(&pool, &without_5);
        let mut now: Vec<usize> = without_5.iter().copied().filter(|it| *it != 2).collect();
        change(&pool, &now);
        now.push(1_000);
        assert_eq!(change(&pool, &now), [5]);
        now.push(1_001);
        assert_eq!(change(&pool, &now), [2]);
        assert_eq!(places(&pool)[5], (5, endpoint(1_000).address));
        // An excess endpoint does not displace a present one.
        now.push(1_002);
        assert_eq!(change(&pool, &now), [0; 0]);
        assert_eq!(places(&pool).len(), MAX_ENDPOINTS);
    }

    #[test]
    fn loads_are_forgotten_when_they_are_stale_or_their_endpoint_leaves() {
        let pool = pool();
        change(&pool, &[1, 2]);
        let now = Instant::now();
        let load = Load {
            waiting: 6,
            running: 3,
            kv_usage: 0.5,
        };
        pool.report(endpoint(1).address, load, now, 0);
        let seen = |after: Duration| {
            let view = pool.view(None, now + after);
            view.engines
                .iter()
                .map(|it| (it.waiting, it.is_saturated))
                .collect::<Vec<_>>()
        };
        assert_eq!(seen(Duration::ZERO), [(6, true), (0, false)]);
        change(&pool, &[2, 1, 3]);
        assert_eq!(seen(Duration::from_secs(5))[0], (6, true));
        assert_eq!(seen(Duration::from_millis(5_001))[0], (0, false));
        change(&pool, &[2]);
        pool.report(endpoint(1).address, load, now, 0);
        change(&pool, &[1, 2]);
        assert_eq!(seen(Duration::ZERO)[0], (0, false));
    }

    #[test]
    fn much_of_the_cache_in_use_saturates_as_well() {
        let pool = pool();
        change(&pool, &[1]);
        let now = Instant::now();
        for (waiting, kv_usage, is_saturated) in [(5, 0.8, false), (6, 0.0, true), (0, 0.81, true)]
        {
            let load = Load {
                waiting,
                running: 0,
                kv_usage,
            };
            pool.report(endpoint(1).address, load, now, 0);
            assert_eq!(pool.view(None, now).engines[0].is_saturated, is_saturated);
        }
    }
}
