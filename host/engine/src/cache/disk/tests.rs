//! Tests of pages through threads, restarts and every fault that the module's table names.

use super::file::Medium;
use super::format::{HEADER_BYTES, RECORD_BYTES, Record};
use super::*;
use foreword_ordering::random::Random;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use tempfile::TempDir;

const PAGE_BYTES: usize = 5000;
const SLOTS: u32 = 6;
const ROOT: PageHash = PageHash(1 << 100);

fn config() -> DiskConfig {
    DiskConfig {
        capacity: 2 * 4096 + u64::from(SLOTS) * (8192 + RECORD_BYTES as u64),
        identity: 42,
        page_bytes: PAGE_BYTES,
    }
}

fn shape() -> Shape {
    let config = config();
    Shape::fit(config.identity, config.page_bytes, config.capacity).unwrap()
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("pages")
    }

    fn open(&self) -> DiskStore {
        DiskStore::open(&self.path(), &config()).unwrap()
    }

    fn open_on(&self, wrap: impl FnOnce(Box<dyn Medium>) -> Box<dyn Medium>) -> DiskStore {
        let (file, origin) = PageFile::open(&self.path(), shape()).unwrap();
        DiskStore::start(file.on_medium(wrap), origin).unwrap()
    }

    fn overwrite(&self, at: u64, bytes: &[u8]) {
        let file = std::fs::OpenOptions::new().write(true).open(self.path());
        file.unwrap().write_all_at(bytes, at).unwrap();
    }
}

fn page(number: u64) -> PageHash {
    PageHash(u128::from(number) << 64 | 7)
}

fn bytes(number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    (0..PAGE_BYTES).map(|_| random.bits() as u8).collect()
}

/// Writes pages that each follow the root.
fn write(store: &DiskStore, pages: impl IntoIterator<Item = u64>) {
    for number in pages {
        store.write(page(number), ROOT, &bytes(number));
    }
    store.flush();
}

/// Requests a page and waits for the answer.
fn read(store: &DiskStore, number: u64) -> Option<Vec<u8>> {
    store.request(page(number));
    store.flush();
    let (answered, bytes) = store.completed().unwrap();
    assert_eq!(answered, page(number));
    assert_eq!(store.completed(), None);
    bytes
}

/// Returns the pages that can be read, and asserts that their bytes are right.
fn readable(store: &DiskStore, pages: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut found = Vec::new();
    for number in pages {
        if let Some(read) = read(store, number) {
            assert!(read == bytes(number), "page {number} has other bytes");
            found.push(number);
        }
    }
    found
}

/// A disk that behaves as `then` says once `left` bytes are written.
struct Limited {
    medium: Box<dyn Medium>,
    left: Arc<AtomicU64>,
    then: Then,
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// Further writes are lost, as after a kill.
    Lost,
    /// The disk is full.
    Full,
}

impl Medium for Limited {
    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        let fits = (bytes.len() as u64).min(self.left.load(Ordering::Relaxed));
        self.left.fetch_sub(fits, Ordering::Relaxed);
        self.medium.write(&bytes[..fits as usize], at)?;
        if self.then == Then::Full && fits < bytes.len() as u64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.medium.sync()
    }
}

fn limited(left: &Arc<AtomicU64>, then: Then) -> impl FnOnce(Box<dyn Medium>) -> Box<dyn Medium> {
    let left = left.clone();
    move |medium| Box::new(Limited { medium, left, then })
}

/// A disk each of whose writes waits for a message.
struct Gated(Box<dyn Medium>, Receiver<()>);

impl Medium for Gated {
    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        // Dropping the sender opens the gate for good.
        let _ = self.1.recv();
        self.0.write(bytes, at)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
}

#[test]
fn answers_come_in_the_order_of_the_requests_and_wake_whoever_waits() {
    let folder = Folder::new();
    let store = folder.open();
    assert_eq!(store.origin(), &Origin::Created);
    let (woken, wakes) = channel();
    store.on_completion(Box::new(move || {
        // The test may have ended.
        let _ = woken.send(());
    }));
    for number in [3, 1, 2] {
        store.write(page(number), ROOT, &bytes(number));
    }
    // Written or about to be: 2, 1, 3. Never written: 9.
    for number in [2, 9, 1, 3, 1] {
        store.request(page(number));
    }
    let mut answers = Vec::new();
    while answers.len() < 5 {
        wakes.recv().unwrap();
        answers.extend(std::iter::from_fn(|| store.completed()));
    }
    let expected =
        [2, 9, 1, 3, 1].map(|number| (page(number), (number != 9).then(|| bytes(number))));
    assert!(answers == expected);
    assert!(store.contains(page(3)) && !store.contains(page(9)));
    let stats = store.stats();
    assert_eq!((stats.pages, stats.written, stats.read), (3, 3, 4));
}

#[test]
fn pages_outlive_the_process_and_keep_their_order_of_use() {
    let folder = Folder::new();
    write(&folder.open(), 0..6);
    let store = folder.open();
    assert_eq!(store.origin(), &Origin::Restored(6));
    assert_eq!(readable(&store, 0..7), [0, 1, 2, 3, 4, 5]);
    drop(store);
    // Reading does not count as writing: the oldest page is still the first one written.
    let store = folder.open();
    write(&store, [6, 7]);
    assert_eq!(store.stats().evicted, 2);
    drop(store);
    assert_eq!(readable(&folder.open(), 0..8), [2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_full_file_gives_up_its_least_recently_used_leaf() {
    let folder = Folder::new();
    let store = folder.open();
    // 0 ◀─ 1 ◀─ 2; 3, 4 and 5 each follow the root.
    store.write(page(0), ROOT, &bytes(0));
    store.write(page(1), page(0), &bytes(1));
    store.write(page(2), page(1), &bytes(2));
    write(&store, 3..6);
    assert_eq!(readable(&store, [3, 4, 5]), [3, 4, 5]);
    // Neither 0 nor 1 is evicted, although they were used earlier: pages follow them.
    write(&store, [6]);
    assert_eq!(readable(&store, 0..7), [0, 1, 3, 4, 5, 6]);
    // Writing a stored page only marks it as used.
    store.write(page(1), page(0), &bytes(1));
    write(&store, [7]);
    assert!(!store.contains(page(3)));
    drop(store);
    // The order survives a restart: 0 was written before all others, but 1 follows it.
    let store = folder.open();
    write(&store, [8]);
    assert!(store.contains(page(0)) && !store.contains(page(1)));
}

#[test]
fn what_was_removed_or_cleared_does_not_come_back() {
    let folder = Folder::new();
    let store = folder.open();
    write(&store, 0..4);
    store.remove(page(1));
    store.remove(page(9));
    drop(store);
    let store = folder.open();
    assert_eq!(store.origin(), &Origin::Restored(3));
    assert_eq!(readable(&store, 0..4), [0, 2, 3]);
    store.clear();
    assert!(readable(&store, 0..4).is_empty());
    write(&store, [5]);
    drop(store);
    assert_eq!(readable(&folder.open(), 0..6), [5]);
}

#[test]
fn nobody_waits_for_a_disk_that_hangs() {
    let folder = Folder::new();
    let (gate, gated) = channel();
    let store = folder.open_on(|medium| Box::new(Gated(medium, gated)));
    // 5,000 bytes a page: the queue takes 4,096 of them, the file six.
    let written = 5000;
    for number in 0..written {
        store.write(page(number), ROOT, &bytes(0));
        store.request(page(number));
    }
    let stats = store.stats();
    assert!((900..=905).contains(&stats.dropped), "{stats:?}");
    drop(gate);
    store.flush();
    let answers = std::iter::from_fn(|| store.completed());
    assert_eq!(answers.count() as u64, written);
}

#[test]
fn a_kill_at_any_byte_leaves_whole_pages_only() {
    let folder = Folder::new();
    // Writes of a page: an erasure, the page, its record. The file is full after six pages, so later ones overwrite.
    let each = (2 * RECORD_BYTES + PAGE_BYTES) as u64;
    let cuts = (0..10).flat_map(|written| {
        [0, 1, 63, 64, 65, 2000, 5063, 5064, 5065, 5100, 5127].map(|more| (written, more))
    });
    for (whole, more) in cuts {
        drop(std::fs::remove_file(folder.path()));
        let left = Arc::new(AtomicU64::new(whole * each + more));
        let store = folder.open_on(limited(&left, Then::Lost));
        write(&store, 0..10);
        drop(store);
        let found = readable(&folder.open(), 0..10);
        let first = whole.saturating_sub(u64::from(SLOTS));
        // The slot that is being overwritten is lost from its first byte on.
        let first = first + u64::from(whole >= u64::from(SLOTS) && more > 0);
        assert!(
            found.iter().copied().eq(first..whole),
            "cut after {whole} pages and {more} bytes: {found:?}"
        );
    }
}

#[test]
fn a_slot_with_a_record_and_no_page_or_a_page_and_no_record_is_not_believed() {
    let folder = Folder::new();
    write(&folder.open(), [0]);
    let shape = shape();
    folder.overwrite(shape.page_at(1), &bytes(1));
    let record = Record {
        page: page(2),
        parent: ROOT,
        stamp: 5,
        page_sum: format::page_sum(page(2), &bytes(2)),
    };
    folder.overwrite(shape.record_at(2), &record.encode(2));
    folder.overwrite(shape.page_at(2), &bytes(2)[..2500]);
    let store = folder.open();
    assert_eq!(store.origin(), &Origin::Restored(2));
    assert_eq!(readable(&store, 0..3), [0]);
    assert_eq!(store.stats().damaged, 1);
    // Once found damaged, the page is removed for good, and its slot is used again.
    drop(store);
    let store = folder.open();
    assert_eq!(store.origin(), &Origin::Restored(1));
    write(&store, 1..6);
    assert_eq!(readable(&store, 0..6), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn flipped_bits_cost_their_page_and_no_other() {
    let folder = Folder::new();
    write(&folder.open(), 0..6);
    let shape = shape();
    for (slot, at) in [(1, 0), (3, 4321), (4, 4999)] {
        let place = shape.page_at(slot) + at;
        folder.overwrite(place, &[!bytes(slot.into())[at as usize]]);
    }
    folder.overwrite(shape.record_at(5) + 20, &[0xa5]);
    let store = folder.open();
    assert_eq!(readable(&store, 0..6), [0, 2]);
    assert_eq!(store.stats().damaged, 3);
}

#[test]
fn a_file_of_something_else_is_discarded_with_its_reason() {
    type Damage = fn(&Folder);
    let nothing: Damage = |_| {};
    let folder = Folder::new();
    let same = config();
    for (config, damage, expected) in [
        (
            DiskConfig {
                identity: 43,
                ..same
            },
            nothing,
            "another model",
        ),
        (
            DiskConfig {
                page_bytes: 4999,
                ..same
            },
            nothing,
            "6 slots of 5000 bytes, wanted are 6 of 4999",
        ),
        (
            DiskConfig {
                capacity: 1 << 20,
                ..same
            },
            nothing,
            "6 slots of 5000 bytes, wanted are 126",
        ),
        (
            same,
            |folder| truncate(folder, shape().file_bytes() - 1),
            "truncated to 57343 of 57344",
        ),
        (same, |folder| truncate(folder, 30), "truncated to 30"),
        (same, |folder| truncate(folder, 0), "truncated to 0"),
        (same, |folder| folder.overwrite(8, &[9]), "its format is 9"),
        (
            same,
            |folder| folder.overwrite(24, &[9]),
            "header is damaged",
        ),
        (
            same,
            |folder| folder.overwrite(0, b"#!/bin/sh"),
            "no file of pages",
        ),
    ] {
        drop(std::fs::remove_file(folder.path()));
        write(&folder.open(), 0..3);
        damage(&folder);
        let store = DiskStore::open(&folder.path(), &config).unwrap();
        match store.origin() {
            Origin::Discarded(reason) => {
                assert!(reason.contains(expected), "{reason:?} is not {expected:?}");
            }
            other => panic!("{other:?} instead of {expected:?}"),
        }
        assert_eq!(store.stats().pages, 0);
        // The new file works.
        store.write(page(1), ROOT, &vec![5; config.page_bytes]);
        drop(store);
        let store = DiskStore::open(&folder.path(), &config).unwrap();
        assert_eq!(store.origin(), &Origin::Restored(1));
        assert_eq!(read(&store, 1), Some(vec![5; config.page_bytes]));
    }
}

fn truncate(folder: &Folder, length: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(folder.path());
    file.unwrap().set_len(length).unwrap();
}

#[test]
fn a_full_disk_costs_what_does_not_fit_and_nothing_else() {
    let folder = Folder::new();
    let each = (2 * RECORD_BYTES + PAGE_BYTES) as u64;
    let left = Arc::new(AtomicU64::new(2 * each + 1000));
    let store = folder.open_on(limited(&left, Then::Full));
    write(&store, 0..5);
    assert_eq!(readable(&store, 0..5), [0, 1]);
    let stats = store.stats();
    assert_eq!((stats.pages, stats.written, stats.failed), (2, 2, 3));
    assert!(stats.last_error.is_some());
    let counts = store.counts();
    assert_eq!((counts.written, counts.failed), (2, 3));
    // The disk has room again.
    left.store(u64::MAX, Ordering::Relaxed);
    write(&store, 2..5);
    assert_eq!(readable(&store, 0..5), [0, 1, 2, 3, 4]);
    drop(store);
    assert_eq!(readable(&folder.open(), 0..5), [0, 1, 2, 3, 4]);
}

#[test]
fn a_file_is_its_owners_alone_and_one_process_at_a_time_has_it() {
    let folder = Folder::new();
    // An incomplete file that a killed process left.
    std::fs::write(folder.0.path().join("pages.new"), b"half").unwrap();
    let store = folder.open();
    for file in ["pages", "pages.lock"] {
        let mode = std::fs::metadata(folder.0.path().join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert!(!folder.0.path().join("pages.new").exists());
    let error = DiskStore::open(&folder.path(), &config()).err().unwrap();
    assert!(matches!(error, DiskError::InUse(_)), "{error}");
    drop(store);
    folder.open();
    let config = DiskConfig {
        capacity: 10_000,
        ..config()
    };
    let error = DiskStore::open(&folder.path(), &config).err().unwrap();
    assert_eq!(
        error.to_string(),
        "10000 bytes of disk have no room for a page of 5000 bytes"
    );
    let nowhere = folder.0.path().join("missing").join("pages");
    let error = DiskStore::open(&nowhere, &self::config()).err().unwrap();
    assert!(error.to_string().contains("missing"), "{error}");
}

/// Returns the error of opening `path`, and asserts that the folder is unchanged.
fn refusal(path: &Path) -> String {
    let listing = || {
        let mut files: Vec<_> = std::fs::read_dir(path.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|file| file.extension().is_none_or(|end| end != "lock"))
            .map(|file| (std::fs::symlink_metadata(&file).unwrap().len(), file))
            .collect();
        files.sort();
        files
    };
    let before = listing();
    let error = DiskStore::open(path, &config()).err().unwrap();
    assert_eq!(listing(), before, "{error}");
    error.to_string()
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let folder = Folder::new();
    let aim = folder.0.path().join("aim");
    for name in ["pages", "pages.lock"] {
        drop(folder.open());
        std::fs::rename(folder.0.path().join(name), &aim).unwrap();
        std::os::unix::fs::symlink(&aim, folder.0.path().join(name)).unwrap();
        let said = refusal(&folder.path());
        assert!(said.contains("it is a symbolic link; remove it"), "{said}");
        std::fs::remove_file(folder.0.path().join(name)).unwrap();
    }
    // A link that leads nowhere must not be followed when the file is created either.
    drop(std::fs::remove_file(folder.path()));
    std::os::unix::fs::symlink(folder.0.path().join("nowhere"), folder.path()).unwrap();
    let said = refusal(&folder.path());
    assert!(said.contains("it is a symbolic link"), "{said}");
}

#[test]
fn a_file_that_others_may_read_or_that_is_none_is_refused() {
    let folder = Folder::new();
    drop(folder.open());
    for mode in [0o640, 0o606, 0o700, 0o400] {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), permissions).unwrap();
        let said = refusal(&folder.path());
        // Without root, a read-only file cannot be opened, so its mode is not reported.
        let expected = format!("its mode is {mode:03o}, not 600");
        assert!(said.contains(&expected) || mode == 0o400, "{said}");
    }
    std::fs::remove_file(folder.path()).unwrap();
    std::fs::create_dir(folder.path()).unwrap();
    assert!(DiskStore::open(&folder.path(), &config()).is_err());
}

/// Only root can change a file's owner, so this tests nothing when run by another user.
#[test]
fn another_users_file_is_refused() {
    let folder = Folder::new();
    drop(folder.open());
    if std::os::unix::fs::chown(folder.path(), Some(12_345), None).is_ok() {
        let said = refusal(&folder.path());
        assert!(said.contains("its owner is user 12345, not 0"), "{said}");
    }
}

#[test]
fn a_second_name_of_an_open_file_is_refused() {
    let folder = Folder::new();
    let store = folder.open();
    write(&store, [1]);
    let other = folder.0.path().join("other");
    std::fs::hard_link(folder.path(), &other).unwrap();
    let said = refusal(&other);
    assert!(
        said.contains("other: it is in use by another process"),
        "{said}"
    );
    assert_eq!(readable(&store, [1]), [1]);
    drop(store);
    // It does not matter which name was used first.
    let store = DiskStore::open(&other, &config()).unwrap();
    assert_eq!(store.origin(), &Origin::Restored(1));
    assert!(refusal(&folder.path()).contains("pages: it is in use"));
}

#[test]
fn a_new_file_is_locked_as_soon_as_it_has_its_name() {
    let folder = Folder::new();
    let store = folder.open();
    let file = std::fs::File::open(folder.path()).unwrap();
    assert!(matches!(
        file.try_lock(),
        Err(std::fs::TryLockError::WouldBlock)
    ));
    drop(store);
    assert!(file.try_lock().is_ok());
}

#[test]
fn the_header_ends_before_the_records() {
    assert!((HEADER_BYTES as u64) < shape().record_at(0));
}

/// Sums detect accidents only. An attacker who writes the file can make them right.
#[test]
fn records_that_nobody_of_ours_wrote_do_no_harm() {
    let mut random = Random::new(6);
    for _ in 0..300 {
        let records: Vec<(u32, Record)> = (0..SLOTS)
            .filter_map(|slot| {
                // Pages that occur twice, follow themselves or each other, and have extreme stamps.
                let record = Record {
                    page: page(random.below(6)),
                    parent: page(random.below(6)),
                    stamp: u64::MAX >> random.below(64) << random.below(2),
                    page_sum: 0,
                };
                Some((slot, Record::decode(&record.encode(slot), slot)?))
            })
            .collect();
        let mut index = Index::new(SLOTS, records.into_iter());
        index.check(SLOTS);
        for _ in 0..40 {
            let (this, parent) = (page(random.below(8)), page(random.below(8)));
            match random.below(4) {
                0 => drop(index.remove(this)),
                1 => drop(index.touch(this)),
                _ if index.get(this).is_none() => drop(index.place(this, parent)),
                _ => {}
            }
            index.check(SLOTS);
        }
    }
}

/// Compares the index with a list that is searched from end to end.
#[test]
fn the_index_agrees_with_a_plain_list() {
    let mut random = Random::new(5);
    let mut index = Index::new(SLOTS, std::iter::empty());
    // Page and parent, least recently used first.
    let mut list: Vec<(PageHash, PageHash)> = Vec::new();
    for step in 0..20_000 {
        let number = random.below(14);
        let (this, parent) = (page(number), page(number / 2 + 100 * u64::from(number < 2)));
        let at = list.iter().position(|(page, _)| *page == this);
        match random.below(5) {
            0 => {
                assert_eq!(index.remove(this).is_some(), at.is_some());
                at.map(|at| list.remove(at));
            }
            1 => {
                assert_eq!(index.touch(this), at.is_some());
                if let Some(at) = at {
                    let entry = list.remove(at);
                    list.push(entry);
                }
            }
            _ if at.is_none() => {
                let leaf = |(page, _): &(PageHash, PageHash)| {
                    *page != parent && list.iter().all(|(_, before)| before != page)
                };
                let victim = list.iter().position(leaf);
                let is_full = list.len() == SLOTS as usize;
                let placed = index.place(this, parent);
                assert_eq!(
                    placed.is_some(),
                    !is_full || victim.is_some(),
                    "step {step}"
                );
                if let Some(placed) = placed {
                    assert_eq!(placed.evicted, is_full);
                    if is_full {
                        victim.map(|at| list.remove(at));
                    }
                    list.push((this, parent));
                }
            }
            _ => {}
        }
        index.check(SLOTS);
        for number in 0..14 {
            let is_here = list.iter().any(|(page, _)| *page == self::page(number));
            assert_eq!(
                index.get(page(number)).is_some(),
                is_here,
                "step {step}, page {number}"
            );
        }
    }
}
