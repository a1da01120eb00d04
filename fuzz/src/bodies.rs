//! Bodies, a 0 byte between two, for one orderer whose configuration the first two bytes choose.

use crate::hostile;
use crate::seeds;
use crate::settings::{self, Settings};
use foreword_ordering::cuts::{CacheKind, CacheRules, CutOptions, Cutter};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::path::Locator;
use foreword_ordering::policy::Placement;
use foreword_ordering::{
    Config, EngineId, Orderer, Skip, Tenant, documents_of, parse, question, salted,
};
use serde_json::Value;
use serde_json::value::RawValue;

pub(crate) fn run(input: &[u8]) {
    let Some((settings, bodies)) = Settings::read(input) else {
        return;
    };
    let config = settings.config();
    let mut orderer = Orderer::new(config.clone());
    let mut cutter = Cutter::new();
    for body in bodies.split(|byte| *byte == 0).take(8) {
        hostile::is_linear(&config, body);
        rewritten(&mut orderer, settings, body);
        for kind in CacheKind::ALL {
            marked(&mut cutter, &config, kind, body);
        }
        asked(&config, body);
        with_salt(body);
        if settings.is_bounded() {
            settings::is_within(orderer.remembered());
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let bodies = seeds::golden().into_iter().map(|bodies| bodies.join(&0));
    let settings = [0x0007, 0x003e, 0x028a, 0x0102, 0x02fa].map(Settings::new);
    let inputs = bodies.flat_map(|bodies| settings.map(|settings| settings.before(&bodies)));
    let hostile = hostile::BODIES.iter();
    let hostile =
        hostile.map(|(_, body)| Settings::new(0x021f).before(hostile::body(*body, 300).as_bytes()));
    inputs.chain(hostile).collect()
}

fn rewritten(orderer: &mut Orderer, settings: Settings, body: &[u8]) {
    let config = orderer.config().clone();
    let rewrite = match orderer.rewrite(Tenant::default(), body) {
        Ok(rewrite) => rewrite,
        Err(Skip::InvalidUtf8 { offset }) => {
            let error = std::str::from_utf8(body).expect_err("it is said to be no UTF-8");
            assert_eq!(error.valid_up_to(), offset);
            return;
        }
        Err(Skip::InvalidJson { .. }) => return,
        Err(_) => return assert!(is_json(body), "other faults are those of JSON"),
    };
    assert!(is_json(body), "only JSON is rewritten");
    let sent = rewrite.body.as_deref().unwrap_or(body);
    assert!(is_json(sent), "JSON stays JSON");
    if as_values(body).is_some() {
        assert!(as_values(sent).is_some(), "and as readable as it was");
    }
    let report = rewrite.report;
    assert!(u64::from(report.matched) <= u64::from(report.documents) + u64::from(report.pinned));
    assert!(report.matched_tokens <= report.document_tokens);
    assert_eq!(rewrite.ordered, rewrite.body.is_some());
    if settings.only_moves() {
        if report.dropped == 0 {
            assert_eq!(
                histogram(body),
                histogram(sent),
                "documents move and nothing else does"
            );
        } else {
            assert!(sent.len() < body.len(), "repeats are left out");
        }
    }
    // The best document of what was sent is another one, so only free placement leaves it as it is.
    let free = config.clone().with_placement(Placement::FREE);
    let sorted = |body: &[u8]| {
        let sent = Orderer::new(free.clone()).rewrite(Tenant::default(), body);
        sent.ok().and_then(|sent| sent.body)
    };
    if settings.only_moves() && settings.is_sorted() {
        let sent = sorted(body).unwrap_or_else(|| body.to_vec());
        // Tags that are not closed may enclose another document once these have moved.
        if documents(&free, body) == documents(&free, &sent) {
            let again = sorted(&sent).unwrap_or_else(|| sent.clone());
            let [again, sent] =
                [again, sent].map(|text| String::from_utf8_lossy(&text).into_owned());
            assert_eq!(again, sent, "what is in order stays in order");
        }
    }
    let prompt = String::from_utf8_lossy(body);
    hostile::is_located_linearly(&config, &rewrite.path, sent, &prompt);
    let located = Locator::new(config.clone()).locate(&rewrite.path, sent, &prompt);
    for run in located.iter().flatten() {
        let ends = run.documents.iter().map(|(_, end)| *end);
        assert!(ends.clone().is_sorted() && ends.clone().all(|end| prompt.is_char_boundary(end)));
    }
    // A tool's result counts where a hint shortened it.
    assert!(documents(&config, body).is_some() || report.documents == report.deduplicated);
}

/// A body is marked as often as it comes, within the provider's bound, and stays what JSON it was.
fn marked(cutter: &mut Cutter, config: &Config, kind: CacheKind, body: &[u8]) {
    let rules = CacheRules {
        minimum_tokens: 1,
        ..kind.rules("")
    };
    for now_ms in 0..12 {
        let options = CutOptions {
            rules,
            tenant: Tenant::default(),
            model: "",
            engine: EngineId(kind as u16),
            now_ms,
        };
        let Ok(cut) = cutter.cut(&options, config, body) else {
            return;
        };
        assert!(cut.markers == 0 || cut.markers + cut.client_markers <= 4);
        assert!(kind.has_markers() || cut.body.is_none());
        if let Some(sent) = cut.body {
            assert!(is_json(body) && is_json(&sent), "JSON stays JSON");
        }
    }
}

/// The documents of each group of a body, in no order; `None`: it has none.
fn documents(config: &Config, body: &[u8]) -> Option<Vec<Vec<Fingerprint>>> {
    let groups = documents_of(body, config).ok()?.into_iter();
    let documents = groups.map(|group| {
        let mut documents: Vec<_> = group.documents.iter().map(|d| d.fingerprint).collect();
        documents.sort_unstable();
        documents
    });
    Some(documents.collect())
}

/// What a retriever is asked, and the body without the field that tells the gateway about it.
fn asked(config: &Config, body: &[u8]) {
    let Ok(parsed) = parse(body, config) else {
        return;
    };
    if let Some(cut) = parsed.place_of_retrieval() {
        let rest = [&body[..cut.start], &body[cut.end..]].concat();
        assert!(is_json(&rest), "the field is cut out whole");
    }
    let Ok(question) = question(&parsed) else {
        return;
    };
    for message in &question.opening.messages {
        assert!(is_json(message.as_bytes()));
    }
}

/// Whoever reads the body behind us finds our salt in it, whichever of two fields he takes.
fn with_salt(body: &[u8]) {
    let Ok(salted) = salted(body, "ours") else {
        return;
    };
    assert!(is_json(&salted));
    if let Some(value) = as_values(&salted) {
        assert_eq!(value["cache_salt"], "ours");
    }
    let again = foreword_ordering::salted(&salted, "ours");
    assert_eq!(again.as_ref(), Ok(&salted), "it is replaced, not added");
}

pub(crate) fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(text).is_ok()
}

fn as_values(text: &[u8]) -> Option<Value> {
    serde_json::from_slice(text).ok()
}

fn histogram(bytes: &[u8]) -> [usize; 256] {
    let mut counts = [0; 256];
    for byte in bytes {
        counts[usize::from(*byte)] += 1;
    }
    counts
}
