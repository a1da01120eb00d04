//! Tests collections through their public interface: random edits against a simple model, saving, opening and damage.

use foreword_ordering::random::Random;
use foreword_retrieval::embedder::{Embedder, Hashing};
use foreword_retrieval::file::FileError;
use foreword_retrieval::index::{Hit, Kind, Metric};
use foreword_retrieval::ingest::{Summary, mirror};
use foreword_retrieval::{Collection, Document, Editor, Query, ScoredDocument, Spec, Tuning};
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

const KINDS: [Kind; 3] = [Kind::Flat, Kind::Ivf, Kind::Hnsw];

fn spec(kind: Kind, embedder: &dyn Embedder) -> Spec {
    Spec {
        dimensions: embedder.dimensions(),
        metric: Metric::Cosine,
        kind,
        embedder: embedder.name().to_owned(),
        tuning: Tuning::default(),
    }
}

fn document(id: u64, words: &str) -> Document {
    let mut metadata = Map::new();
    metadata.insert(
        "parity".to_owned(),
        json!(if id.is_multiple_of(2) { "even" } else { "odd" }),
    );
    Document {
        id: format!("d{id}"),
        title: String::new(),
        text: format!("{words} number{id}"),
        metadata,
    }
}

fn find(
    collection: &Collection,
    embedder: &Hashing,
    question: &str,
    k: usize,
    filters: &Map<String, serde_json::Value>,
    words: bool,
) -> Vec<ScoredDocument> {
    let vector = &embedder.embed(&[question]).unwrap()[0].vector;
    let query = Query {
        vector,
        words: words.then_some(question),
        k,
        filters,
        caller: None,
        slice: Duration::ZERO,
    };
    let hits = collection.search(&query, |_| ControlFlow::Continue(()));
    collection.found(&hits.unwrap()).unwrap()
}

/// Returns a collection of a hundred documents with the same two words.
fn of_some_words(kind: Kind, embedder: &Hashing) -> Collection {
    let mut editor = Editor::new(Collection::new(spec(kind, embedder))).unwrap();
    for id in 0..100 {
        let document = document(id, "some words");
        let vector = &embedder.embed(&[&document.text]).unwrap()[0].vector;
        editor.put(&document, vector).unwrap();
    }
    editor.finish().unwrap()
}

#[test]
fn a_search_ends_when_its_caller_has_gone() {
    let embedder = Hashing::new(64).unwrap();
    for kind in KINDS {
        let collection = of_some_words(kind, &embedder);
        let vector = &embedder.embed(&["some words"]).unwrap()[0].vector;
        let mut caller = Some(Arc::new(()));
        let present = caller.as_ref().map(Arc::downgrade);
        let query = Query {
            vector,
            words: Some("some words"),
            k: 5,
            filters: &Map::new(),
            caller: present.as_ref(),
            slice: Duration::ZERO,
        };
        // Counts the stages of a search, and cancels it in the one of this number.
        let mut stages = |cancelling: usize| {
            let mut count = 0;
            let stage = |_: &[Hit]| {
                count += 1;
                if count == cancelling {
                    drop(caller.take());
                }
                ControlFlow::Continue(())
            };
            let found = collection.search(&query, stage).unwrap();
            (count, found.len())
        };
        let (all, found) = stages(0);
        assert!(all > 2 && found == 5, "{kind:?}: {all} stages");
        assert_eq!(stages(2).0, 2, "{kind:?}");
        assert_eq!(stages(0), (0, 0), "{kind:?}");
    }
}

#[test]
fn a_search_in_slices_of_time_reports_once_they_have_passed() {
    let embedder = Hashing::new(64).unwrap();
    for kind in KINDS {
        let collection = of_some_words(kind, &embedder);
        let search = |slice| {
            let query = Query {
                vector: &embedder.embed(&["some words"]).unwrap()[0].vector,
                words: None,
                k: 5,
                filters: &Map::new(),
                caller: None,
                slice,
            };
            let mut stages = 0;
            let stage = |_: &[Hit]| {
                stages += 1;
                std::thread::sleep(Duration::from_millis(1));
                ControlFlow::Continue(())
            };
            (collection.search(&query, stage).unwrap(), stages)
        };
        let (found, stages) = search(Duration::ZERO);
        assert!(stages > 2, "{kind:?}: {stages} stages");
        assert_eq!(search(Duration::from_secs(3600)), (found, 0), "{kind:?}");
    }
}

#[test]
fn a_question_without_words_is_searched_by_its_vector_alone() {
    let embedder = Hashing::new(64).unwrap();
    for kind in KINDS {
        let collection = of_some_words(kind, &embedder);
        let vector = &embedder.embed(&["some words"]).unwrap()[0].vector;
        let search = |words| {
            let query = Query {
                vector,
                words,
                k: 5,
                filters: &Map::new(),
                caller: None,
                slice: Duration::ZERO,
            };
            let mut stages = 0;
            let stage = |_: &[Hit]| {
                stages += 1;
                ControlFlow::Continue(())
            };
            (collection.search(&query, stage).unwrap(), stages)
        };
        for words in ["", "\u{1f44d} ?!"] {
            assert_eq!(search(Some(words)), search(None), "{kind:?}");
        }
    }
}

#[test]
fn random_edits_leave_what_an_obvious_model_holds() {
    let embedder = Hashing::new(64).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for kind in KINDS {
        let mut random = Random::new(kind as u64);
        let mut model: BTreeMap<u64, Document> = BTreeMap::new();
        let mut collection = Collection::new(spec(kind, &embedder));
        let path = folder.path().join(kind.name());
        for round in 0..12 {
            let mut editor = Editor::new(collection).unwrap();
            for _ in 0..40 {
                let id = random.below(120);
                if random.below(3) == 0 {
                    assert_eq!(
                        editor.remove(&format!("d{id}")),
                        model.remove(&id).is_some()
                    );
                } else {
                    let document = document(id, &format!("text {}", random.below(1000)));
                    let vector = &embedder.embed(&[&document.text]).unwrap()[0].vector;
                    editor.put(&document, vector).unwrap();
                    assert!(editor.holds(&document));
                    model.insert(id, document);
                }
                assert_eq!(editor.ids().count(), model.len());
            }
            collection = editor.finish().unwrap();
            if round % 3 == 2 {
                collection.save(&path).unwrap();
                collection = Collection::open(&path).unwrap();
            }
            assert_eq!(collection.len(), model.len());
            for words in [false, true] {
                for document in model.values() {
                    let found = find(
                        &collection,
                        &embedder,
                        &document.text,
                        1,
                        &Map::new(),
                        words,
                    );
                    assert_eq!(*found[0].document, *document, "{kind:?}, words: {words}");
                }
            }
            let all = find(&collection, &embedder, "text", 500, &Map::new(), false);
            let mut ids: Vec<&str> = all.iter().map(|found| &*found.document.id).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(
                (ids.len(), all.len()),
                (model.len(), model.len()),
                "{kind:?}"
            );
        }
    }
}

#[test]
fn filters_hold_for_every_result() {
    let embedder = Hashing::new(64).unwrap();
    for kind in KINDS {
        let mut editor = Editor::new(Collection::new(spec(kind, &embedder))).unwrap();
        for id in 0..300 {
            let document = document(id, "some words");
            let vector = &embedder.embed(&[&document.text]).unwrap()[0].vector;
            editor.put(&document, vector).unwrap();
        }
        let collection = editor.finish().unwrap();
        let count = |filters: serde_json::Value| {
            let filters = filters.as_object().unwrap().clone();
            let found = find(&collection, &embedder, "some words", 10, &filters, true);
            let parities = found
                .iter()
                .filter(|f| f.document.metadata["parity"] == "odd");
            (found.len(), parities.count())
        };
        assert_eq!(count(json!({"parity": "odd"})), (10, 10), "{kind:?}");
        assert_eq!(count(json!({"parity": ["even", "neither"]})), (10, 0));
        assert_eq!(count(json!({"parity": "neither"})), (0, 0));
        assert_eq!(count(json!({"missing": "odd"})), (0, 0));
    }
}

#[test]
fn documents_with_equal_vectors_are_all_found() {
    let embedder = Hashing::new(16).unwrap();
    for kind in KINDS {
        let mut collection = Collection::new(spec(kind, &embedder));
        let put = |editor: &mut Editor, document: &Document| {
            let vector = &embedder.embed(&[&document.text]).unwrap()[0].vector;
            editor.put(document, vector).unwrap();
        };
        let mut editor = Editor::new(collection).unwrap();
        for id in 0..400 {
            put(&mut editor, &document(id, "some words"));
        }
        collection = editor.finish().unwrap();
        // Only its metadata changes, so its vector stays.
        for edit in 0..90 {
            let mut changed = document(7, "some words");
            changed.metadata.insert("edit".to_owned(), json!(edit));
            let mut editor = Editor::new(collection).unwrap();
            put(&mut editor, &changed);
            collection = editor.finish().unwrap();
            let found = find(&collection, &embedder, &changed.text, 1, &Map::new(), false);
            assert_eq!(*found[0].document, changed, "{kind:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("collection");
        collection.save(&path).unwrap();
        let mut editor = Editor::new(Collection::open(&path).unwrap()).unwrap();
        let text = "the same everywhere";
        for id in 1_000..1_060 {
            put(&mut editor, &with_text(id, text));
        }
        collection = editor.finish().unwrap();
        let found = find(&collection, &embedder, text, 60, &Map::new(), false);
        let found = found.iter().filter(|found| found.document.text == text);
        assert_eq!(found.count(), 60, "{kind:?}");
    }
}

fn with_text(id: u64, text: &str) -> Document {
    Document {
        text: text.to_owned(),
        ..document(id, "")
    }
}

#[test]
fn many_equal_vectors_do_not_hide_the_others() {
    let embedder = Hashing::new(32).unwrap();
    for metric in [Metric::Cosine, Metric::L2] {
        let spec = Spec {
            metric,
            ..spec(Kind::Hnsw, &embedder)
        };
        let mut editor = Editor::new(Collection::new(spec)).unwrap();
        let mut put = |document: &Document| {
            let vector = &embedder.embed(&[&document.text]).unwrap()[0].vector;
            editor.put(document, vector).unwrap();
        };
        let same = "the same everywhere";
        for id in 0..500 {
            put(&with_text(id, same));
        }
        for id in 500..800 {
            put(&document(id, "other words"));
        }
        let collection = editor.finish().unwrap();
        for id in 500..800 {
            let asked = document(id, "other words").text;
            let found = find(&collection, &embedder, &asked, 1, &Map::new(), false);
            assert_eq!(found[0].document.text, asked, "{metric:?}");
        }
        let mut odd = Map::new();
        odd.insert("parity".to_owned(), json!("odd"));
        let found = find(&collection, &embedder, same, 250, &odd, false);
        let found = found.iter().filter(|found| found.document.text == same);
        assert_eq!(found.count(), 250, "{metric:?}");
    }
}

#[test]
fn a_search_can_be_ended_after_any_stage() {
    let embedder = Hashing::new(64).unwrap();
    let mut editor = Editor::new(Collection::new(spec(Kind::Flat, &embedder))).unwrap();
    for id in 0..320 {
        let document = document(id, "some words");
        let vector = &embedder.embed(&[&document.text]).unwrap()[0].vector;
        editor.put(&document, vector).unwrap();
    }
    let collection = editor.finish().unwrap();
    let vector = &embedder.embed(&["number7"]).unwrap()[0].vector;
    let query = Query {
        vector,
        words: None,
        k: 1,
        filters: &Map::new(),
        caller: None,
        slice: Duration::ZERO,
    };
    let mut stages = 0;
    let hits = collection.search(&query, |_| {
        stages += 1;
        if stages == 3 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!(stages, 3);
    assert!(hits.unwrap()[0].slot.0 < 30);
}

#[test]
fn a_mirror_adds_replaces_and_deletes_and_leaves_the_rest() {
    let embedder = Hashing::new(64).unwrap();
    let documents = |ids: std::ops::Range<u64>, words: &str| -> Vec<Document> {
        ids.map(|id| document(id, words)).collect()
    };
    let collection = Collection::new(spec(Kind::Ivf, &embedder));
    let mut first = documents(0..50, "first");
    first.push(Document {
        id: "blank".into(),
        text: "?!".into(),
        ..Document::default()
    });
    let (collection, summary) = mirror(collection, &first, &embedder, |_, _| {}).unwrap();
    assert_eq!(
        summary,
        Summary {
            embedded: 50,
            empty: 1,
            ..Summary::default()
        }
    );

    let mut second = documents(0..30, "first");
    second.extend(documents(30..35, "second"));
    // Blanked, so that its old text must not be found any more.
    second.push(Document {
        id: "d49".into(),
        text: "?!".into(),
        ..Document::default()
    });
    let mut told = Vec::new();
    let (collection, summary) = mirror(collection, &second, &embedder, |done, of| {
        told.push((done, of));
    })
    .unwrap();
    assert_eq!(
        summary,
        Summary {
            embedded: 5,
            unchanged: 30,
            deleted: 15,
            empty: 1
        }
    );
    assert_eq!(told, [(0, 36), (32, 36), (36, 36)]);
    assert_eq!(collection.len(), 35);

    let other = Hashing::new(32).unwrap();
    let refused = mirror(collection, &second, &other, |_, _| {})
        .err()
        .unwrap();
    assert_eq!(
        refused.to_string(),
        "the index was made with the embedder hashing-64, not with hashing-32"
    );
}

/// Checksums detect accidents. A file made by an attacker has valid ones, and must be refused or opened without a
/// panic.
#[test]
fn a_file_with_right_checksums_and_wrong_contents_does_no_harm() {
    use foreword_retrieval::file::{Part, Parts, write};
    let embedder = Hashing::new(16).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let mut random = Random::new(9);
    for kind in KINDS {
        let documents: Vec<Document> = (0..40).map(|id| document(id, "some words")).collect();
        let collection = Collection::new(spec(kind, &embedder));
        let (collection, _) = mirror(collection, &documents, &embedder, |_, _| {}).unwrap();
        collection.save(&path).unwrap();
        let all: Vec<(Part, Vec<u8>)> = {
            let parts = Parts::open(&path).unwrap();
            PARTS
                .iter()
                .filter_map(|part| Some((*part, parts.bytes(*part).ok()?.to_vec())))
                .collect()
        };
        let mut refused = 0;
        for _ in 0..400 {
            let mut wrong = all.clone();
            let part = random.below(wrong.len() as u64) as usize;
            let bytes = &mut wrong[part].1;
            match random.below(4) {
                0 => drop(bytes.pop()),
                1 => bytes.extend([0; 8]),
                _ if bytes.is_empty() => continue,
                2 if bytes.len() >= 4 => {
                    // The largest possible number, or its upper half.
                    let at = 4 * random.below(bytes.len() as u64 / 4) as usize;
                    bytes[at..at + 4].fill(0xff);
                }
                _ => {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = random.bits() as u8;
                }
            }
            write(&path, &wrong).unwrap();
            match Collection::open(&path) {
                Err(FileError::Damaged { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
                Ok(collection) => {
                    let vector = &embedder.embed(&["some words number7"]).unwrap()[0].vector;
                    if collection.spec().dimensions == 16 {
                        let query = Query {
                            vector,
                            words: Some("number7 words"),
                            k: 9,
                            filters: &Map::new(),
                            caller: None,
                            slice: Duration::ZERO,
                        };
                        let hits = collection.search(&query, |_| ControlFlow::Continue(()));
                        let _ = hits.map(|hits| collection.found(&hits));
                    }
                    if let Ok(editor) = Editor::new(collection) {
                        let _ = editor.finish();
                    }
                }
            }
        }
        assert!(refused > 50, "{kind:?}: {refused}");
    }
    const PARTS: [Part; 17] = [
        Part::Description,
        Part::Vectors,
        Part::Deleted,
        Part::RecordStarts,
        Part::Records,
        Part::Fingerprints,
        Part::Centres,
        Part::ListStarts,
        Part::ListSlots,
        Part::ListRows,
        Part::GroundLinks,
        Part::UpperLinks,
        Part::Words,
        Part::WordStarts,
        Part::PostingStarts,
        Part::Postings,
        Part::Lengths,
    ];
}
