use super::correction::Corrected;
use super::record::{ChatContinuation, SentRun};
use super::*;
use crate::arrangement::{Arrangement, Slot};
use crate::body::{Chain, PartStyle, Wrap};
use crate::conversation::memory::{AddedMessage, MessageKey};
use crate::conversation::sent::{Kept, Pin, Pinned, SentMessage, Written};
use crate::document::Fingerprint;
use crate::feed::TenantKey;
use crate::head::decision::{Claim, ContextMessage, Form};
use crate::tree::Scope;
use proptest::prelude::*;

fn arrangement() -> impl Strategy<Value = Arrangement> {
    let slot = (0_u16..4096, any::<bool>()).prop_map(|(index, is_reference)| {
        if is_reference {
            Slot::reference(index)
        } else {
            Slot::document(index)
        }
    });
    (prop::collection::vec(slot, 0..5), any::<bool>()).prop_map(|(slots, hinted)| Arrangement {
        slots: slots.into(),
        hinted,
    })
}

fn run() -> impl Strategy<Value = SentRun> {
    let documents = prop::collection::vec((any::<u64>(), any::<u32>()), 1..20);
    let run = (
        any::<[u32; 2]>(),
        any::<u64>(),
        documents,
        any::<Option<u64>>(),
    );
    run.prop_map(|([before, matched], scope, documents, seed)| SentRun {
        scope: Scope(scope),
        before,
        matched,
        order: seed.map(|seed| {
            let mut order: Vec<u16> = (0..documents.len() as u16).collect();
            order.rotate_left(seed as usize % documents.len());
            order
        }),
        documents: (documents.into_iter())
            .map(|(document, tokens)| (Fingerprint(document), tokens))
            .collect(),
        is_ranked: seed.is_none_or(|seed| seed % 2 == 0),
    })
}

fn part(text: &str) -> String {
    format!(r#"{{"type":"text","text":"{text}"}}"#)
}

fn pin() -> impl Strategy<Value = Pin> {
    let numbers = (any::<[u64; 2]>(), any::<u32>());
    ("[a-zé]{0,20}", 0_u8..7, numbers, 0_usize..4).prop_map(|(text, wrap, numbers, count)| {
        let ([digest, references], tokens) = numbers;
        let (wrap, text) = match wrap {
            0 => (Wrap::None, text),
            wrap => {
                let style = PartStyle::ALL[usize::from(wrap - 1) / 2];
                let others = wrap % 2 == 0;
                let comma = if others { "," } else { "" };
                let text = [style.open(), &text, "\"}", comma].concat();
                (Wrap::Part { others, style }, text)
            }
        };
        let all = 0..text.len();
        let document = |at| Pinned::new(Fingerprint(at), 300, &all, &(0..0)).unwrap();
        Pin {
            wrap,
            tokens,
            documents: (0..).map(document).take(count).collect(),
            text: text.into(),
            digest,
            references,
        }
    })
}

fn chat() -> impl Strategy<Value = ChatContinuation> {
    let written = (any::<u64>(), arrangement(), prop::option::of(pin()));
    let written = written.prop_map(|(list, arrangement, pin)| Written {
        list: Fingerprint(list),
        arrangement,
        pin,
    });
    let added = (
        any::<u128>(),
        prop::collection::vec(arrangement(), 0..3),
        prop::option::of(written),
    );
    let after = prop::option::of((any::<u128>(), any::<u64>()));
    (after, prop::collection::vec(added, 0..4)).prop_map(|(after, added)| ChatContinuation {
        after: after.map(|(chain, lineage)| MessageKey {
            chain: Chain(chain),
            lineage,
        }),
        added: (0..)
            .step_by(300)
            .zip(added)
            .map(|(message, (chain, groups, written))| AddedMessage {
                message,
                chain: Chain(chain),
                sent: SentMessage {
                    groups: groups.into(),
                    written,
                    kept: (message % 600 == 0).then(|| {
                        Box::new(Kept {
                            moved: "12:00\\nAnn".into(),
                            spans: [1, 2].into(),
                            frozen: ["é".into()].into(),
                        })
                    }),
                },
            })
            .collect(),
    })
}

fn record() -> impl Strategy<Value = OrderingRecord> {
    let names = ("[a-zé]{0,200}", "[a-z]{0,4}", "[a-z]{0,9}");
    (
        names,
        prop::collection::vec(run(), 0..4),
        prop::option::of(chat()),
    )
        .prop_map(|((tenant, salt, model), runs, chat)| OrderingRecord {
            about: About {
                tenant: tenant.into(),
                key: TenantKey::of(&salt),
                model: model.into(),
                engine: EngineId(3),
            },
            tokens: 77,
            forms: runs
                .iter()
                .map(|run| Form {
                    canonical: run.scope.0,
                    order: [1, 0].into(),
                })
                .collect(),
            claims: (runs.iter())
                .map(|run| Claim {
                    key: u128::from(run.scope.0) << 64,
                    next: Chain(run.scope.0.into()),
                })
                .collect(),
            context: runs.first().map(|run| ContextMessage {
                key: run.scope.0.into(),
                content: r#"[{"text":"é\n?"}]"#.into(),
                text: 10..15,
                tokens: run.before,
            }),
            runs,
            chat,
        })
}

fn event() -> impl Strategy<Value = Event> {
    let path = prop::collection::vec((any::<u64>(), any::<u32>()), 0..6);
    (0..3, "[a-z]{0,3}", any::<u64>(), path).prop_map(|(kind, salt, scope, path)| {
        let (tenant, scope) = (TenantKey::of(&salt), Scope(scope));
        let path = path
            .into_iter()
            .map(|(document, tokens)| (Fingerprint(document), tokens));
        match kind {
            0 => Event::Cleared,
            1 => Event::Stored {
                tenant,
                scope,
                path: path.collect(),
            },
            _ => Event::Removed {
                tenant,
                scope,
                path: path.map(|(document, _)| document).collect(),
            },
        }
    })
}

fn update() -> impl Strategy<Value = PeerUpdate> {
    let residency = (
        any::<u16>(),
        "[a-z]{0,9}",
        prop::collection::vec(event(), 0..6),
    );
    let residency = residency.prop_map(|(engine, model, events)| Residency {
        engine: EngineId(engine),
        model: model.into(),
        events,
    });
    let runs = (
        any::<u64>(),
        prop::collection::vec(any::<u64>(), 0..6),
        any::<[u64; 2]>(),
    );
    let runs = runs.prop_map(
        |(scope, path, [expected_tokens, cached_tokens])| Corrected {
            scope: Scope(scope),
            path: path.into_iter().map(Fingerprint).collect(),
            expected_tokens,
            cached_tokens,
        },
    );
    let correction = (record(), prop::collection::vec(runs, 0..3));
    let correction = correction.prop_map(|(record, runs)| Correction {
        about: record.about,
        runs,
    });
    prop_oneof![
        record().prop_map(PeerUpdate::OrderingRecord),
        record().prop_map(|record| PeerUpdate::Remote((&record).into())),
        residency.prop_map(PeerUpdate::Residency),
        correction.prop_map(PeerUpdate::Correction),
    ]
}

/// Returns the record of a request with one run of adjacent documents: `documents` of them with 100 estimated tokens
/// each, after 100 tokens of a prompt of 1,000.
fn sent(documents: u64, matched: u32) -> OrderingRecord {
    OrderingRecord {
        about: About {
            tenant: "t".into(),
            key: TenantKey::default(),
            model: "m".into(),
            engine: EngineId(1),
        },
        tokens: 1_000,
        runs: vec![SentRun {
            scope: Scope(0x0102),
            before: 100,
            matched,
            documents: (0..documents)
                .map(|document| (Fingerprint(document), 100))
                .collect(),
            order: Some((0..documents as u16).rev().collect()),
            is_ranked: true,
        }],
        chat: None,
        forms: Vec::new(),
        claims: Vec::new(),
        context: None,
    }
}

#[test]
fn a_message_with_contexts_that_is_none_is_refused() {
    for (content, text, is_good) in [
        (r#""a?""#, 1..3, true),
        (r#""a?""#, 1..2, false),
        (r#""a?""#, 0..3, false),
        (r#""a?""#, 1..9, false),
        (r#""a?"#, 1..2, false),
        (r#""a?","role":"system""#, 1..3, false),
        (r#"[{"text":"a"}]"#, 10..11, true),
        (r#"[{"text":"a"}]"#, 3..4, false),
        (r#"{"text":"a"}"#, 9..10, false),
        ("7", 0..1, false),
    ] {
        let record = OrderingRecord {
            context: Some(ContextMessage {
                key: 1,
                content: content.into(),
                text: text.clone(),
                tokens: 1,
            }),
            ..sent(1, 0)
        };
        let read = PeerUpdate::decode(&record.encode());
        assert_eq!(read.is_ok(), is_good, "{content} {text:?}");
    }
}

#[test]
fn the_bytes_are_fixed() {
    // Modules of different builds share one ring while a gateway is updated.
    let mut bytes = vec![VERSION, RECORD, 1, b't'];
    bytes.extend([0; 16]);
    bytes.extend([1, b'm', 1, 0xe8, 7, 1]);
    bytes.extend([2, 1, 0, 0, 0, 0, 0, 0, 100, 0x80, 1, 2]);
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 100]);
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, 100]);
    bytes.extend([1, 1, 0, 1, 0, 0, 0, 0]);
    assert_eq!(PeerUpdate::OrderingRecord(sent(2, 128)).encode(), bytes);
}

#[test]
fn what_cannot_be_read_says_what_was_expected_and_where() {
    let start = [&[VERSION, RECORD, 0][..], &[0; 19]].concat();
    let huge = [&start[..], &[0xff; 9], &[1]].concat();
    let run = [&start[..], &[1], &[0; 10]].concat();
    let none = [&run[..], &[0]].concat();
    let twice = [&run[..], &[2], &[0; 18], &[1, 0, 0, 0]].concat();
    for (bytes, error) in [
        (&[][..], "more bytes at byte 0"),
        (&[9], "version 5 at byte 1"),
        (&[VERSION, 9], "a kind at byte 2"),
        (&[VERSION, RECORD, 2, 0xff, 0xff], "UTF-8 at byte 3"),
        (
            &[VERSION, RECORD, 3, b'a'],
            "as many bytes as the length says at byte 3",
        ),
        (&huge, "as many bytes as the length says at byte 32"),
        (&none, "a document at byte 34"),
        (&twice, "a rank of its own at byte 55"),
    ] {
        let found = PeerUpdate::decode(bytes).unwrap_err().to_string();
        assert_eq!(found, format!("expected {error}"));
    }
}

#[test]
fn a_pinned_text_that_does_not_fit_its_place_is_refused() {
    let style = PartStyle::Typed;
    let others = |others| Wrap::Part { others, style };
    for (wrap, text, is_good) in [
        (Wrap::None, r"a\n\u00e9", true),
        (Wrap::None, r#"a\""#, true),
        (Wrap::None, "a\"", false),
        (Wrap::None, "\", \"", false),
        (Wrap::None, "a\\", false),
        (Wrap::None, "a\n", false),
        (others(true), &(part("a") + ","), true),
        (others(true), &part("a"), false),
        (others(false), &part("a"), true),
        (others(false), &(part("a") + ","), false),
        (others(false), &part("\"}, {\""), false),
        // It is JSON, and does not reveal the documents.
        (others(false), r#"{"type":"text","next":"a"}"#, false),
    ] {
        let pin = Pin {
            text: text.into(),
            wrap,
            tokens: 1,
            documents: Box::default(),
            digest: 0,
            references: 0,
        };
        let written = Written {
            list: Fingerprint(1),
            arrangement: Arrangement {
                slots: Box::default(),
                hinted: false,
            },
            pin: Some(pin),
        };
        let added = AddedMessage {
            message: 0,
            chain: Chain(1),
            sent: SentMessage {
                groups: Box::default(),
                written: Some(written),
                kept: None,
            },
        };
        let chat = ChatContinuation {
            after: None,
            added: vec![added],
        };
        let record = OrderingRecord {
            chat: Some(chat),
            ..sent(1, 0)
        };
        assert_eq!(
            PeerUpdate::decode(&record.encode()).is_ok(),
            is_good,
            "{text}"
        );
    }
}

#[test]
fn an_engine_that_did_not_take_a_request_lacks_what_it_would_have_brought() {
    let removed = |matched: u32| {
        let events = sent(3, matched).undone().events;
        events.into_iter().map(|event| match event {
            Event::Removed { path, .. } => path.len(),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(removed(0).collect::<Vec<_>>(), [1]);
    assert_eq!(removed(200).collect::<Vec<_>>(), [3]);
    assert_eq!(removed(300).collect::<Vec<_>>(), [] as [usize; 0]);
}

#[test]
fn an_engine_that_held_what_was_believed_is_not_corrected() {
    let usage = |cached_tokens| Usage {
        prompt_tokens: 2_000,
        cached_tokens,
    };
    let cached = |record: &OrderingRecord, cached| {
        let correction = record.judged(usage(cached))?;
        Some(correction.runs[0].cached_tokens)
    };
    // The engine's tokens are half as long as estimated: 1,200 of them cover the 100 before the run and five
    // documents.
    let record = sent(8, 500);
    for held in [1_200, 2_000, 1_000, 900] {
        assert_eq!(record.judged(usage(held)), None, "{held}");
    }
    // It held one document, or none: estimates, with their tolerance.
    assert_eq!(cached(&record, 400), Some(265));
    assert_eq!(cached(&record, 0), Some(65));
    assert_eq!(sent(8, 0).judged(usage(0)), None);
    let nothing = Usage {
        prompt_tokens: 0,
        cached_tokens: 0,
    };
    assert_eq!(record.judged(nothing), None);
    // A count that no prompt has.
    let absurd = Usage {
        prompt_tokens: 1,
        cached_tokens: u64::MAX,
    };
    assert_eq!(record.judged(absurd), None);
}

proptest! {
    #[test]
    fn bytes_lead_back_to_what_was_told(update in update()) {
        prop_assert_eq!(PeerUpdate::decode(&update.encode()), Ok(update));
    }

    #[test]
    fn gateways_of_other_proxies_are_told_hashes_alone(update in update()) {
        let told = PeerUpdate::decode_remote(&update.encode_remote());
        match update {
            PeerUpdate::OrderingRecord(record) => {
                prop_assert_eq!(told, Ok(PeerUpdate::Remote((&record).into())));
                prop_assert!(PeerUpdate::decode_remote(&record.encode()).is_err());
            }
            PeerUpdate::Residency(residency) => {
                let is_removed = |event: &Event| matches!(event, Event::Removed { .. });
                let is_told = residency.events.iter().all(is_removed);
                prop_assert_eq!(told.ok(), is_told.then_some(PeerUpdate::Residency(residency)));
            }
            update => prop_assert_eq!(told, Ok(update)),
        }
    }

    #[test]
    fn an_update_is_about_the_engine_that_its_reader_knows(update in update(), engine: u16) {
        let engine = EngineId(engine);
        prop_assert_eq!(update.about(engine).engine(), engine);
    }

    #[test]
    fn no_bytes_panic_and_half_is_nothing(update in update(), at in any::<usize>(), byte in any::<u8>()) {
        let mut bytes = update.encode();
        let at = at % bytes.len();
        prop_assert!(PeerUpdate::decode(&bytes[..at]).is_err());
        bytes[at] = byte;
        let _ = PeerUpdate::decode(&bytes);
    }

    #[test]
    fn noise_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let kinds = [RECORD, RESIDENCY, CORRECTION, REMOTE];
        let begun = kinds.map(|kind| [&[VERSION, kind], &bytes[..]].concat());
        for bytes in begun.iter().chain([&bytes]) {
            if let Ok(update) = PeerUpdate::decode(bytes) {
                prop_assert_eq!(PeerUpdate::decode(&update.encode()), Ok(update));
            }
        }
    }
}
