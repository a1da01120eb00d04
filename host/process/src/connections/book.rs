//! The book of a listener's connections: which connections hold a place, and which one is closed if all places are
//! taken. It does not depend on sockets or HTTP.

use crate::metrics::registered;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The limits of a listener's connections: their number, time, speed and memory.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of open connections, at least one.
    pub connections: u32,
    /// Maximum number of connections per address (an IPv6 /64 network counts as one); 0 for no limit. Loopback has no
    /// limit.
    pub per_address: u32,
    /// Time limit for a request's head, from its first byte or, for the first request, from the connection's start.
    pub head_time: Duration,
    /// Time limit for an idle connection between two requests.
    pub idle_time: Duration,
    /// Minimum number of bytes per second that a client must send of a body, and accept of a pending response; 0 for no
    /// limit.
    pub rate: u32,
    /// Length of the windows in which the rate is measured.
    pub window: Duration,
    /// Maximum number of bytes of bodies that are still arriving, over all connections.
    pub body_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 1024,
            per_address: 512,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(3660),
            rate: 1024,
            window: Duration::from_secs(10),
            body_bytes: 256 << 20,
        }
    }
}

impl Bounds {
    /// Returns the minimum number of bytes that must pass in each window, by `rate`.
    pub fn bytes_in_window(&self) -> u64 {
        let bytes = u128::from(self.rate) * self.window.as_millis() / 1000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The stage of a connection. If a place is needed, a connection in the first of these stages is closed, but never one
/// in [`Stage::Busy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Waiting for a request's head, or receiving it.
    Head,
    /// Idle between two requests.
    Idle,
    /// Receiving a request's body.
    Arriving,
    /// Answering a request.
    Busy,
}

/// All connections of a listener and their stages.
#[derive(Debug)]
pub struct Book {
    name: &'static str,
    bounds: Bounds,
    /// Never locked across an `.await`. If a panic leaves its collections inconsistent, connections that only one of
    /// them has are ignored.
    state: Mutex<State>,
    /// Notified when a connection has ended or may be closed.
    changed: Notify,
    counts: Counts,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the next connection, and of the next change of a stage.
    next: u64,
    entries: HashMap<u64, Entry>,
    /// Connections in the order in which they are closed: stage, start of the stage, id.
    order: BTreeSet<Rank>,
    by_address: HashMap<Address, BTreeSet<Rank>>,
    /// Bytes of incomplete bodies.
    body_bytes: u64,
    /// The time since when no connection could be admitted; `None` if one can.
    full_since: Option<Instant>,
    /// True while the system fails to accept connections.
    is_failing: bool,
}

/// A connection's place in the order of closing: its stage, the number of the change that began the stage, and its id.
type Rank = (Stage, u64, u64);

#[derive(Debug)]
struct Entry {
    rank: Rank,
    since: Instant,
    address: Option<Address>,
    body_bytes: u64,
    /// Notified when the connection must end.
    evicted: Arc<Notify>,
}

/// The part of an IP address that identifies a client: all of an IPv4 address, or an IPv6 /64 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Address(IpAddr);

impl Address {
    /// Returns the client's address; `None` for loopback, which all local clients share.
    fn of(address: IpAddr) -> Option<Self> {
        let address = address.to_canonical();
        if address.is_loopback() {
            return None;
        }
        Some(Self(match address {
            IpAddr::V6(address) => {
                // A client that has one address of a /64 network can usually use all.
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address @ IpAddr::V4(_) => address,
        }))
    }
}

/// The reason for which a connection cannot be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// All connections of the listener are busy.
    Everywhere,
    /// All connections of this address are busy.
    Address,
}

impl Book {
    /// Returns an empty book. `name` labels its metrics and log lines.
    pub fn new(name: &'static str, bounds: Bounds, counts: Counts) -> Arc<Self> {
        Arc::new(Self {
            name,
            bounds,
            state: Mutex::default(),
            changed: Notify::new(),
            counts,
        })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the maximum number of connections that may be open at once.
    pub(super) fn places(&self) -> usize {
        self.bounds.connections.max(1) as usize
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// Returns the bytes of bodies that are still arriving.
    pub fn arriving_bytes(&self) -> u64 {
        self.state.lock().body_bytes
    }

    /// Returns whether accepting connections fails at present, or none could be admitted for `time`.
    pub fn is_exhausted(&self, time: Duration) -> bool {
        let state = self.state.lock();
        state.is_failing || (state.full_since).is_some_and(|since| since.elapsed() >= time)
    }

    /// Waits until a connection can be admitted, possibly by closing another one.
    pub(super) async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.lock();
                let is_full = state.entries.len() >= self.places();
                if !is_full || first(&state.order).is_some() {
                    state.full_since = None;
                    return;
                }
                state.full_since.get_or_insert_with(Instant::now);
            }
            changed.await;
        }
    }

    /// Admits a connection from `address`. If the listener or the address has no place left, closes another connection.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Place, Full> {
        let address = Address::of(address);
        let mut state = self.state.lock();
        let per_address = self.bounds.per_address as usize;
        if per_address > 0
            && let Some(those) = address.and_then(|address| state.by_address.get(&address))
            && those.len() >= per_address
        {
            let gone = first(those);
            self.counts.closed(self.name, "address");
            match gone {
                Some(id) => self.end(&mut state, id),
                None => return Err(Full::Address),
            }
        }
        if state.entries.len() >= self.places() {
            let id = first(&state.order).ok_or(Full::Everywhere)?;
            self.counts.closed(self.name, "crowded");
            self.end(&mut state, id);
        }
        let id = state.next;
        let entry = Entry {
            rank: (Stage::Head, id, id),
            since: Instant::now(),
            address,
            body_bytes: 0,
            evicted: Arc::default(),
        };
        let evicted = Arc::clone(&entry.evicted);
        state.next += 1;
        state.insert(id, entry);
        drop(state);
        self.counts.connections(self.name).inc();
        Ok(Place {
            book: Arc::clone(self),
            id,
            evicted,
            traffic: Arc::default(),
        })
    }

    /// Closes the connection that is first in the order of closing, if any may be closed.
    pub(super) fn evict_one(&self) {
        let mut state = self.state.lock();
        if let Some(id) = first(&state.order) {
            self.counts.closed(self.name, "crowded");
            self.end(&mut state, id);
        }
    }

    /// Records that accepting a connection has failed.
    pub(super) fn failed(&self) {
        self.state.lock().is_failing = true;
        self.counts.accept_failed(self.name);
    }

    /// Records that accepting connections works again.
    pub(super) fn recovered(&self) {
        self.state.lock().is_failing = false;
    }

    /// Removes a connection's entry at once. Its task ends when it is notified.
    fn end(&self, state: &mut State, id: u64) {
        if let Some(entry) = state.remove(id) {
            entry.evicted.notify_one();
            self.counts.connections(self.name).dec();
        }
    }

    /// Records that the connection `id` enters `stage` now.
    fn enter(&self, id: u64, stage: Stage) {
        let mut state = self.state.lock();
        let turn = state.next;
        if let Some(mut entry) = state.remove(id) {
            state.next += 1;
            entry.body_bytes = 0;
            entry.rank = (stage, turn, id);
            entry.since = Instant::now();
            state.insert(id, entry);
        }
        drop(state);
        if stage < Stage::Busy {
            self.changed.notify_waiters();
        }
    }

    /// Reserves memory for a body; see [`Arriving::holds`].
    fn grow(&self, id: u64, bytes: u64) -> bool {
        let mut state = self.state.lock();
        if !state.entries.contains_key(&id) {
            return false;
        }
        while state.body_bytes.saturating_add(bytes) > self.bounds.body_bytes {
            let arriving = (Stage::Arriving, 0, 0)..(Stage::Busy, 0, 0);
            let holds = |&(_, _, other): &Rank| {
                let entry = state.entries.get(&other);
                other != id && entry.is_some_and(|entry| entry.body_bytes > 0)
            };
            let Some((_, _, other)) = state.order.range(arriving).copied().find(holds) else {
                return false;
            };
            self.counts.closed(self.name, "body_memory");
            self.end(&mut state, other);
        }
        state.body_bytes += bytes;
        if let Some(entry) = state.entries.get_mut(&id) {
            entry.body_bytes += bytes;
        }
        true
    }

    /// Returns the deadline of a connection's stage, and the cause to count if it passes; `None` if the stage has none.
    fn deadline(&self, id: u64) -> Option<(Instant, &'static str)> {
        let state = self.state.lock();
        let entry = state.entries.get(&id)?;
        match entry.rank.0 {
            Stage::Head => Some((entry.since + self.bounds.head_time, "head_time")),
            Stage::Idle => Some((entry.since + self.bounds.idle_time, "idle_time")),
            // The body's reader, or the response, has its own deadline.
            Stage::Arriving | Stage::Busy => None,
        }
    }
}

impl State {
    fn insert(&mut self, id: u64, entry: Entry) {
        self.order.insert(entry.rank);
        if let Some(address) = entry.address {
            let those = self.by_address.entry(address).or_default();
            those.insert(entry.rank);
        }
        self.body_bytes += entry.body_bytes;
        self.entries.insert(id, entry);
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.order.remove(&entry.rank);
        if let Some(address) = entry.address
            && let Some(those) = self.by_address.get_mut(&address)
        {
            those.remove(&entry.rank);
            if those.is_empty() {
                self.by_address.remove(&address);
            }
        }
        self.body_bytes -= entry.body_bytes;
        Some(entry)
    }
}

/// Returns the connection to close first; `None` if all are busy.
fn first(order: &BTreeSet<Rank>) -> Option<u64> {
    let (stage, _, id) = order.first()?;
    (*stage < Stage::Busy).then_some(*id)
}

/// The place of an open connection, freed on drop.
#[derive(Debug)]
pub(super) struct Place {
    book: Arc<Book>,
    id: u64,
    evicted: Arc<Notify>,
    traffic: Arc<Traffic>,
}

impl Place {
    /// Returns a handle for the code that reads, writes and serves the connection.
    pub(super) fn connection(&self) -> Connection {
        Connection {
            book: Arc::clone(&self.book),
            id: self.id,
            traffic: Arc::clone(&self.traffic),
        }
    }

    /// Polls `work`, which serves the connection, until it completes, a deadline passes, the client is too slow, or the
    /// connection is closed for another.
    pub(super) async fn serve_until_closed(self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        let mut window = (Instant::now(), 0);
        while let Some(next) = self.check(&mut window) {
            tokio::select! {
                biased;
                () = &mut work => return,
                () = self.evicted.notified() => return,
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Checks the connection's deadlines and its client's rate of reading. Returns when to check again; `None` if a
    /// deadline has passed or the client is too slow. `window` has the start of the current window and the number of
    /// bytes that were written before it.
    fn check(&self, window: &mut (Instant, u64)) -> Option<Instant> {
        let Self {
            book, id, traffic, ..
        } = self;
        let bounds = &book.bounds;
        let now = Instant::now();
        let written = traffic.written.load(Ordering::Relaxed);
        let is_stuck = bounds.rate > 0 && traffic.is_stuck.load(Ordering::Relaxed);
        let is_over = now.duration_since(window.0) >= bounds.window;
        if is_stuck && is_over && written - window.1 < bounds.bytes_in_window() {
            book.counts.closed(book.name, "slow_reader");
            return None;
        }
        if !is_stuck || is_over {
            *window = (now, written);
        }
        let deadline = book.deadline(*id);
        if let Some((deadline, cause)) = deadline
            && now >= deadline
        {
            book.counts.closed(book.name, cause);
            return None;
        }
        // Whatever stage begins meanwhile, its deadline is not before this.
        let again = now + bounds.head_time.min(bounds.idle_time).min(bounds.window);
        Some(deadline.map_or(again, |(deadline, _)| deadline.min(again)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.book.state.lock();
        self.book.end(&mut state, self.id);
        drop(state);
        self.book.changed.notify_waiters();
    }
}

/// The traffic of a connection, reported by its socket.
#[derive(Debug, Default)]
struct Traffic {
    is_idle: AtomicBool,
    /// Number of bytes that the socket has accepted so far.
    written: AtomicU64,
    /// True while the socket accepts no more of the bytes to send.
    is_stuck: AtomicBool,
}

/// A handle by which a connection's code reports to the book. Without effect once the connection was closed.
#[derive(Clone, Debug)]
pub struct Connection {
    book: Arc<Book>,
    id: u64,
    traffic: Arc<Traffic>,
}

impl Connection {
    /// Records that bytes arrived from the client, which begin a request if the connection was idle.
    pub(super) fn read(&self) {
        if self.traffic.is_idle.load(Ordering::Relaxed)
            && self.traffic.is_idle.swap(false, Ordering::Relaxed)
        {
            self.book.enter(self.id, Stage::Head);
        }
    }

    /// Records that the socket accepted bytes.
    pub(super) fn wrote(&self, bytes: usize) {
        (self.traffic.written).fetch_add(bytes as u64, Ordering::Relaxed);
        self.traffic.is_stuck.store(false, Ordering::Relaxed);
    }

    /// Records that the socket does not accept more bytes.
    pub(super) fn is_stuck(&self) {
        self.traffic.is_stuck.store(true, Ordering::Relaxed);
    }

    /// Records that a request's head is complete: the connection is busy until the result is dropped.
    pub fn busy(&self) -> Busy {
        self.traffic.is_idle.store(false, Ordering::Relaxed);
        self.book.enter(self.id, Stage::Busy);
        Busy(self.clone())
    }

    /// Records that a request's body is being read, until the result is dropped.
    pub fn arriving(&self) -> Arriving {
        self.book.enter(self.id, Stage::Arriving);
        Arriving(self.clone())
    }

    /// Returns the limits of this listener's connections.
    pub fn bounds(&self) -> &Bounds {
        &self.book.bounds
    }
}

/// A request that is being answered; when it is dropped, the connection is idle.
#[derive(Debug)]
pub struct Busy(Connection);

impl Drop for Busy {
    fn drop(&mut self) {
        let Connection { book, id, traffic } = &self.0;
        book.enter(*id, Stage::Idle);
        traffic.is_idle.store(true, Ordering::Relaxed);
    }
}

/// A request's body that is being read. Its bytes count against [`Bounds::body_bytes`] until this is dropped.
#[derive(Debug)]
pub struct Arriving(Connection);

impl Arriving {
    /// Reserves memory for `bytes` more of the body. If the limit would be exceeded, closes other connections with
    /// arriving bodies, the longest-arriving first. Returns false if that is not enough, or this one was closed.
    pub fn holds(&self, bytes: usize) -> bool {
        self.0.book.grow(self.0.id, bytes as u64)
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.book.enter(self.0.id, Stage::Busy);
    }
}

/// Metrics of connections: open ones, and closed ones by cause.
///
/// | name | kind | labels |
/// | --- | --- | --- |
/// | `foreword_connections` | gauge | `listener`: `public`, `internal`, `kv_events`, `kv_replay` |
/// | `foreword_connections_closed_total` | counter | `listener`, `cause` |
/// | `foreword_accept_failures_total` | counter | `listener` |
///
/// A `cause` is `head_time`, `idle_time`, `slow_reader`, `crowded`, `address` or `body_memory`.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    connections: Family<Listener, Gauge>,
    closed: Family<Closed, Counter>,
    failures: Family<Listener, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Listener {
    listener: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Closed {
    listener: &'static str,
    cause: &'static str,
}

impl Counts {
    /// Returns counters that are registered in `registry`.
    pub fn registered(registry: &mut Registry) -> Self {
        let closed = "Connections that were closed before their client was done, by cause";
        let failures = "Times a connection could not be accepted";
        Self {
            connections: registered(registry, "connections", "Connections by listener"),
            closed: registered(registry, "connections_closed", closed),
            failures: registered(registry, "accept_failures", failures),
        }
    }

    /// Returns how many connections of `listener` were closed for `cause`.
    pub fn closed_for(&self, listener: &'static str, cause: &'static str) -> u64 {
        self.closed.get_or_create(&Closed { listener, cause }).get()
    }

    fn connections(&self, listener: &'static str) -> Gauge {
        self.connections.get_or_create_owned(&Listener { listener })
    }

    fn closed(&self, listener: &'static str, cause: &'static str) {
        self.closed.get_or_create(&Closed { listener, cause }).inc();
    }

    fn accept_failed(&self, listener: &'static str) {
        self.failures.get_or_create(&Listener { listener }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn book(connections: u32, per_address: u32) -> Arc<Book> {
        let bounds = Bounds {
            connections,
            per_address,
            body_bytes: 100,
            ..Bounds::default()
        };
        Book::new("public", bounds, Counts::default())
    }

    fn is_gone(place: &Place) -> bool {
        !place.book.state.lock().entries.contains_key(&place.id)
    }

    fn closed(book: &Book, cause: &'static str) -> u64 {
        book.counts.closed_for("public", cause)
    }

    #[tokio::test]
    async fn heads_go_before_idle_ones_and_those_before_bodies_and_answers_never() {
        let book = book(4, 0);
        let places: Vec<Place> = (0..4).map(|_| book.admit(LOOPBACK).unwrap()).collect();
        let [answered, body, idle, _head] = &places[..] else {
            unreachable!()
        };
        let busy = answered.connection().busy();
        let reading = (body.connection().busy(), body.connection().arriving());
        drop(idle.connection().busy());
        let mut others = Vec::new();
        for goes in [3, 2, 1] {
            let other = book.admit(LOOPBACK).unwrap();
            // It is answered at once, so it is not closed for the next one.
            others.push((other.connection().busy(), other));
            let gone: Vec<usize> = (0..4).filter(|&at| is_gone(&places[at])).collect();
            assert_eq!(gone, (goes..4).collect::<Vec<_>>());
        }
        assert_eq!(book.admit(LOOPBACK).err(), Some(Full::Everywhere));
        assert_eq!(closed(&book, "crowded"), 3);
        // Places already freed are not freed again.
        drop(reading);
        drop(places);
        assert_eq!(book.connections(), 3);
        drop(busy);
        drop(others);
        assert_eq!((book.connections(), book.arriving_bytes()), (0, 0));
        assert!(book.state.lock().order.is_empty());
    }

    #[tokio::test]
    async fn of_heads_the_one_goes_that_has_waited_longest() {
        let book = book(2, 0);
        let first = book.admit(LOOPBACK).unwrap();
        let second = book.admit(LOOPBACK).unwrap();
        // Its request was answered, and the next one has begun.
        drop(first.connection().busy());
        first.connection().read();
        let third = book.admit(LOOPBACK).unwrap();
        assert!(is_gone(&second) && !is_gone(&first) && !is_gone(&third));
    }

    #[tokio::test]
    async fn an_address_has_its_own_bound_and_loopback_has_none() {
        let book = book(100, 2);
        let network = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 7, 0, 0, 0, last]);
        let v4 = |last: u8| IpAddr::from([192, 0, 2, last]);
        for (one, same, other) in [
            (v4(1), v4(1), v4(2)),
            (
                network(1),
                network(2),
                IpAddr::from([0x2001, 0xdb8, 0, 8, 0, 0, 0, 1]),
            ),
            (
                IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0203]),
                v4(3),
                v4(4),
            ),
        ] {
            let first = book.admit(one).unwrap();
            let second = book.admit(same).unwrap();
            let _other = book.admit(other).unwrap();
            assert!(!is_gone(&first));
            let third = book.admit(one).unwrap();
            assert!(is_gone(&first) && !is_gone(&second));
            // When all connections are busy, the next one is refused.
            let _busy = (second.connection().busy(), third.connection().busy());
            assert_eq!(book.admit(same).err(), Some(Full::Address));
        }
        let many: Vec<Place> = (0..50).map(|_| book.admit(LOOPBACK).unwrap()).collect();
        assert!(!many.iter().any(is_gone));
        drop(many);
        assert!(book.state.lock().by_address.is_empty());
    }

    #[tokio::test]
    async fn bodies_share_a_memory_and_the_one_goes_that_has_been_arriving_longest() {
        let book = book(10, 0);
        let places: Vec<Place> = (0..3).map(|_| book.admit(LOOPBACK).unwrap()).collect();
        let arriving: Vec<Arriving> = places
            .iter()
            .map(|place| place.connection().arriving())
            .collect();
        assert!(arriving[1].holds(60) && arriving[0].holds(30));
        assert_eq!(book.arriving_bytes(), 90);
        assert!(arriving[2].holds(40));
        assert!(is_gone(&places[0]) && !is_gone(&places[1]));
        assert!(arriving[2].holds(50));
        assert!(is_gone(&places[1]));
        assert_eq!(book.arriving_bytes(), 90);
        // A closed connection reserves no memory, and no connection exceeds the limit.
        assert!(!arriving[0].holds(1) && !arriving[2].holds(11));
        assert_eq!(closed(&book, "body_memory"), 2);
        drop(arriving);
        assert_eq!(book.arriving_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_without_room_is_exhausted_after_a_while_and_no_more_when_one_goes() {
        let book = book(1, 0);
        let place = book.admit(LOOPBACK).unwrap();
        let busy = place.connection().busy();
        let waiting = tokio::spawn({
            let book = Arc::clone(&book);
            async move { book.room().await }
        });
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(!book.is_exhausted(Duration::from_secs(10)));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(book.is_exhausted(Duration::from_secs(10)));
        drop(busy);
        waiting.await.unwrap();
        assert!(!book.is_exhausted(Duration::ZERO));
        book.failed();
        assert!(book.is_exhausted(Duration::from_secs(10)));
        book.recovered();
        assert!(!book.is_exhausted(Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_gives_each_stage_its_time() {
        let book = book(9, 0);
        let place = book.admit(LOOPBACK).unwrap();
        let mut window = (Instant::now(), 0);
        let start = Instant::now();
        // At first the head's deadline applies.
        assert_eq!(
            place.check(&mut window),
            Some(start + book.bounds.head_time)
        );
        let busy = place.connection().busy();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(place.check(&mut window).is_some());
        drop(busy);
        tokio::time::sleep(Duration::from_secs(3659)).await;
        assert!(place.check(&mut window).is_some());
        // The next request's first byte, and then silence.
        place.connection().read();
        tokio::time::sleep(Duration::from_secs(9)).await;
        place.connection().read();
        assert!(place.check(&mut window).is_some());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(place.check(&mut window), None);
        assert_eq!(closed(&book, "head_time"), 1);

        let place = book.admit(LOOPBACK).unwrap();
        drop(place.connection().busy());
        tokio::time::sleep(book.bounds.idle_time).await;
        assert_eq!(place.check(&mut (Instant::now(), 0)), None);
        assert_eq!(closed(&book, "idle_time"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_too_little_of_its_answer_goes() {
        let book = book(9, 0);
        let (place, other) = (book.admit(LOOPBACK).unwrap(), book.admit(LOOPBACK).unwrap());
        let (connection, unasked) = (place.connection(), other.connection());
        let (_busy, _other) = (connection.busy(), unasked.busy());
        let (mut window, mut others) = ((Instant::now(), 0), (Instant::now(), 0));
        for (bytes, goes_on) in [(10_240, true), (10_239, false)] {
            connection.is_stuck();
            assert!(place.check(&mut window).is_some());
            tokio::time::sleep(Duration::from_secs(10)).await;
            connection.wrote(bytes);
            connection.is_stuck();
            assert_eq!(place.check(&mut window).is_some(), goes_on);
            // No bytes were waiting.
            unasked.wrote(1);
            assert!(other.check(&mut others).is_some());
        }
        assert_eq!(closed(&book, "slow_reader"), 1);
    }
}
