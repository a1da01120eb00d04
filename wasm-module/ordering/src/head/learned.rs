//! Finds volatile spans (texts that change between requests) that no pattern matches, by comparing the system texts of
//! one tenant and model.
//!
//! ```text
//!   request 1   [You are Ada.] [Be brief.] [Desk 4, Ann.] [Cite.]
//!   request 2   [You are Ada.] [Be brief.] [Desk 9, Bob.] [Cite.]
//!   template    [You are Ada.] [Be brief.] <  slot: 2  >  [Cite.]       used from here on
//! ```
//!
//! A **template** is a system text as its stable units (lines or sentences) and the slots between them. A text belongs
//! to a template if the units that both have, in the same order, make up a third of each, and at most a few others
//! stand between two of them; the text between is in slots. A slot becomes volatile when it has held two different
//! values; a constant does no harm. Only hashes are stored.

use super::marks::{Class, Word, words};
use super::texts::{MAX_UNITS, Unit};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The templates of the system texts of one tenant and model: which lines or sentences are stable, and where text
/// changes.
#[derive(Debug, Default)]
pub(super) struct Learned {
    templates: Vec<Template>,
    now: u64,
    /// A counter that increases whenever the set of places whose text changes between requests may have changed.
    pub(super) version: u64,
}

#[derive(Debug)]
struct Template {
    /// Hash and length in bytes of each stable unit (line or sentence), in order.
    stable: Vec<(u64, u32)>,
    /// The slots, in which text may change, before, between and after the stable units (lines or sentences): one more
    /// than there are stable units.
    slots: Vec<Slot>,
    last_used: u64,
}

/// The text between two stable lines or sentences of a template: the hash of its first value, and whether it has
/// changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    /// Hash of the first text seen in this slot, between two stable lines or sentences; 0 if there has never been any.
    first: u64,
    /// True if a different text than the first one has stood in this slot, between two stable lines or sentences.
    is_volatile: bool,
}

/// Hash and length in bytes of a line or sentence of a system text, which is all that is compared with earlier texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) hash: u64,
    pub(super) bytes: u32,
}

impl Seen {
    pub(super) fn of(unit: &Unit) -> Self {
        Self {
            hash: unit.hash,
            bytes: u32::try_from(unit.range.len()).unwrap_or(u32::MAX),
        }
    }
}

impl Learned {
    /// Compares a system text, given by its units (lines or sentences), with the templates (stable lines of earlier
    /// texts), and adapts the templates to it. Returns, for each unit, true if it is in a place where the text changes
    /// between requests. O(units), for a bounded number of templates.
    pub(super) fn learn(&mut self, units: &[Seen]) -> Vec<bool> {
        let mut volatile = vec![false; units.len()];
        if units.len() > MAX_UNITS {
            return volatile;
        }
        self.now += 1;
        let found = (self.templates.iter().enumerate())
            .filter_map(|(at, template)| Some((at, template.fit(units)?)))
            // The template that shares the most bytes; on a tie, the one used last.
            .max_by_key(|(at, fit)| {
                let last_used = self
                    .templates
                    .get(*at)
                    .map_or(0, |template| template.last_used);
                (fit.bytes, last_used)
            });
        let Some((at, fit)) = found else {
            if self.templates.len() >= MAX_TEMPLATES {
                let oldest = self.templates.iter().enumerate();
                let oldest = oldest.min_by_key(|(_, template)| template.last_used);
                if let Some((oldest, _)) = oldest {
                    self.templates.swap_remove(oldest);
                }
            }
            self.templates.push(Template {
                stable: units.iter().map(|unit| (unit.hash, unit.bytes)).collect(),
                slots: vec![Slot::default(); units.len() + 1],
                last_used: self.now,
            });
            return volatile;
        };
        if let Some(template) = self.templates.get_mut(at) {
            template.last_used = self.now;
            if template.take(units, &fit, &mut volatile) {
                self.version += 1;
            }
        }
        volatile
    }
}

/// The correspondence between a system text and a template (the stable lines of earlier texts): the units (lines or
/// sentences) that both have.
struct Fit {
    /// For each unit (line or sentence) that both have: its index among the template's stable units, and its index in
    /// the system text.
    pairs: Vec<(usize, usize)>,
    /// Number of bytes of the units (lines or sentences) that the template and the system text have in common.
    bytes: u64,
}

impl Template {
    /// Returns the lines and sentences that a system text has in common with this template (the stable lines of earlier
    /// texts); `None` if they are too few, or if too many others stand between them, so that the text does not belong
    /// to the template.
    fn fit(&self, units: &[Seen]) -> Option<Fit> {
        let mut pairs = Vec::with_capacity(units.len());
        let (mut next, mut since) = (0, 0);
        let (mut bytes, mut all) = (0_u64, 0_u64);
        for (at, unit) in units.iter().enumerate() {
            all += u64::from(unit.bytes);
            let window = self.stable.iter().enumerate().skip(next).take(MAX_GAP + 1);
            let same = window.clone().find(|(_, (hash, _))| *hash == unit.hash);
            match same {
                Some((place, _)) => {
                    pairs.push((place, at));
                    bytes += u64::from(unit.bytes);
                    (next, since) = (place + 1, 0);
                }
                None => since += 1,
            }
            if since > MAX_GAP {
                return None;
            }
        }
        let left = self.stable.len() - next;
        let own: u64 = self.stable.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
        let is_shared = bytes > 0 && bytes * 3 >= all && bytes * 3 >= own;
        (left <= MAX_GAP && is_shared).then_some(Fit { pairs, bytes })
    }

    /// Adapts the template (the stable lines of earlier texts) to a system text that belongs to it, and sets `volatile`
    /// to true for each line or sentence in a place where the text changes between requests. Returns true if the
    /// template lost stable lines, or if the text in a place has changed for the first time.
    fn take(&mut self, units: &[Seen], fit: &Fit, volatile: &mut [bool]) -> bool {
        let mut changed = false;
        let is_whole = fit.pairs.len() == self.stable.len();
        let mut stable = Vec::with_capacity(fit.pairs.len());
        let mut slots = Vec::with_capacity(fit.pairs.len() + 1);
        let (mut place, mut at) = (0, 0);
        let ends = fit.pairs.iter().copied();
        for (place_end, at_end) in ends.chain([(self.stable.len(), units.len())]) {
            let mut slot = if place == place_end {
                self.slots.get(place).copied().unwrap_or_default()
            } else {
                self.joined(place, place_end)
            };
            let value = units.get(at..at_end).unwrap_or_default();
            if !value.is_empty() {
                let value = hashed(value.iter().map(|unit| unit.hash));
                if slot.first == 0 {
                    slot.first = value;
                    changed |= !is_whole;
                } else if slot.first != value && !slot.is_volatile {
                    slot.is_volatile = true;
                    changed = true;
                }
                if slot.is_volatile {
                    let marks = volatile.get_mut(at..at_end).unwrap_or_default();
                    marks.fill(true);
                }
            }
            slots.push(slot);
            if let Some(unit) = self.stable.get(place_end) {
                stable.push(*unit);
            }
            (place, at) = (place_end + 1, at_end + 1);
        }
        changed |= !is_whole;
        (self.stable, self.slots) = (stable, slots);
        changed
    }

    /// Returns one slot (where text may change) that replaces the stable units (lines or sentences) `from..to`, which
    /// the system text lacks, and the slots around them.
    fn joined(&self, from: usize, to: usize) -> Slot {
        let units = self.stable.get(from..to).unwrap_or_default();
        let slots = self.slots.get(from..=to).unwrap_or_default();
        Slot {
            first: hashed(units.iter().map(|(hash, _)| *hash)),
            is_volatile: slots.iter().any(|slot| slot.is_volatile),
        }
    }
}

fn hashed(hashes: impl Iterator<Item = u64>) -> u64 {
    let hash = hashes.fold(0, |hash, unit| xxh3_64_with_seed(&unit.to_le_bytes(), hash));
    hash.max(1)
}

/// Returns whether a line or sentence has the form of data: a time, an id, an address, a name with a number, a label
/// with such a value, or one element that contains these. Any other text stays in the system message: it may be an
/// instruction or a persona, which would lose its authority elsewhere.
pub(super) fn looks_like_data(words: &str) -> bool {
    if words.len() > MAX_DATA_BYTES || words.contains("```") {
        return false;
    }
    match element(words) {
        Some(parts) => !parts.concat().contains('<') && is_data(&parts.join(" ")),
        None => !words.contains('<') && is_data(words),
    }
}

/// Returns the attributes and the text of an XML element that spans all of `words`: `<now>12:03</now>`, `<session
/// id="7"/>`; `None` if `words` has another form.
fn element(words: &str) -> Option<[&str; 2]> {
    let rest = words.trim().strip_prefix('<')?;
    let name = rest
        .split(|c: char| !(c.is_alphanumeric() || "-_.:".contains(c)))
        .next()?;
    let rest = rest.get(name.len()..).filter(|_| !name.is_empty())?;
    if let Some(attributes) = rest.strip_suffix("/>") {
        return Some([attributes.trim(), ""]);
    }
    let (attributes, rest) = rest.split_once('>')?;
    let inside = rest
        .strip_suffix('>')?
        .strip_suffix(name)?
        .strip_suffix("</")?;
    Some([attributes.trim(), inside.trim()])
}

fn is_data(text: &str) -> bool {
    let words = words(text);
    let has = |word: &Word, is_one: fn(&char) -> bool| {
        let word = text.get(word.range.clone()).unwrap_or_default();
        word.chars().any(|c| is_one(&c))
    };
    let has_digit = |word: &Word| has(word, char::is_ascii_digit);
    let is_value = |word: &Word| match word.class {
        Class::Time => has_digit(word),
        Class::Id => true,
        _ => has(word, |c| *c == '@'),
    };
    let is_named = words.windows(2).any(|pair| {
        (pair.iter()).all(|word| word.class == Class::Value && has(word, char::is_ascii_uppercase))
    });
    let label = text.find([':', '=']).filter(|end| *end <= MAX_LABEL_BYTES);
    let is_labelled = label.is_some_and(|end| {
        let mut behind = (words.iter())
            .filter(|word| word.range.start > end)
            .peekable();
        // Words in capitals only are emphasis, as in an instruction, rather than names.
        let is_name =
            |word: &Word| has(word, |c| c.is_uppercase()) && has(word, |c| c.is_lowercase());
        behind.peek().is_some() && behind.all(|word| word.class != Class::Plain || is_name(word))
    });
    let is_form =
        is_labelled || words.iter().any(is_value) || is_named && words.iter().any(has_digit);
    is_form && !is_prose(text)
}

/// Returns whether the text looks like prose rather than a value. A sentence of many plain words is prose even if it
/// contains names: `The Order Desk is meant for …` describes a role as `You are …` does.
fn is_prose(words: &str) -> bool {
    let (mut plain, mut telling) = (0, 0);
    for word in words.split(|c: char| !(c.is_alphanumeric() || c == '\'' || c == '_')) {
        if word.starts_with(char::is_uppercase) || word.contains(|c: char| c.is_ascii_digit()) {
            telling += 1;
        } else if !word.is_empty() {
            plain += 1;
        }
    }
    plain > MAX_PLAIN_WORDS && plain > 5 * telling
}

/// The maximum length in bytes of a line or sentence that may count as data (a time, an id, a name) and not as an
/// instruction.
const MAX_DATA_BYTES: usize = 240;

/// The maximum length in bytes of the label before a value, as in `label: value`.
const MAX_LABEL_BYTES: usize = 48;

/// The maximum number of plain words in a value; with more, it is prose, unless at least a sixth of its words are names
/// or numbers.
const MAX_PLAIN_WORDS: u32 = 16;

/// The maximum number of consecutive units (lines or sentences) of a system text between two stable ones, and of
/// consecutive stable units that it lacks. Beyond either, the text does not belong to the template.
const MAX_GAP: usize = 8;

/// The maximum number of templates (sets of stable lines) of system texts for one tenant and model.
const MAX_TEMPLATES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares `text`, in which each word stands for a line, with earlier texts, and returns the words in places where
    /// the text changes.
    fn learn(learned: &mut Learned, text: &str) -> Vec<String> {
        let words: Vec<&str> = text.split(' ').collect();
        let seen = |word: &&str| Seen {
            hash: xxh3_64_with_seed(word.as_bytes(), 0),
            bytes: word.len() as u32,
        };
        let units: Vec<Seen> = words.iter().map(seen).collect();
        let marks = learned.learn(&units);
        let marked = words.into_iter().zip(marks).filter(|(_, mark)| *mark);
        marked.map(|(word, _)| word.to_owned()).collect()
    }

    #[test]
    fn a_slot_acts_from_its_second_value_on_and_a_constant_never() {
        let mut learned = Learned::default();
        assert!(learn(&mut learned, "rule-one rule-two ann rule-three").is_empty());
        assert!(learn(&mut learned, "rule-one rule-two ann rule-three").is_empty());
        assert_eq!(
            learn(&mut learned, "rule-one rule-two bob rule-three"),
            ["bob"]
        );
        assert_eq!(
            learn(&mut learned, "rule-one rule-two ann rule-three"),
            ["ann"]
        );
        let version = learned.version;
        assert_eq!(
            learn(&mut learned, "rule-one rule-two eve rule-three"),
            ["eve"]
        );
        assert_eq!(learned.version, version);
    }

    #[test]
    fn several_slots_are_learned_at_the_ends_and_side_by_side() {
        let mut learned = Learned::default();
        learn(&mut learned, "10:00 rule-one rule-two rule-three s1 t1");
        assert_eq!(
            learn(&mut learned, "10:01 rule-one rule-two rule-three s2 t2"),
            ["10:01", "s2", "t2"]
        );
        assert_eq!(learn(&mut learned, "rule-one rule-two rule-three"), [""; 0]);
    }

    #[test]
    fn another_text_is_another_template_and_each_keeps_its_slots() {
        let mut learned = Learned::default();
        learn(&mut learned, "rule-one rule-two ann");
        learn(&mut learned, "other-one other-two ann other-three");
        assert_eq!(learn(&mut learned, "rule-one rule-two bob"), ["bob"]);
        assert!(learn(&mut learned, "other-one other-two ann other-three").is_empty());
        for at in 0..20 {
            learn(&mut learned, &format!("a{at} b{at} c{at}"));
        }
        assert_eq!(learned.templates.len(), MAX_TEMPLATES);
    }

    #[test]
    fn a_value_that_appears_is_no_second_value() {
        let mut learned = Learned::default();
        learn(&mut learned, "rule-one rule-two");
        assert!(learn(&mut learned, "rule-one rule-two ann").is_empty());
        assert!(learn(&mut learned, "rule-one rule-two ann").is_empty());
        assert_eq!(learn(&mut learned, "rule-one rule-two bob"), ["bob"]);
    }

    #[test]
    fn data_moves_and_instructions_do_not() {
        for words in [
            "User: Ann Smith",
            "You are talking to Ann Smith, desk 12.",
            "The user is Bob Miller at desk 9 in Berlin.",
            "session 9f8e7d6c",
            "Today is Monday, 22 November.",
            "Locale: en-GB",
            "Heute ist Montag, der 22. Mai 2026, 14:03 Uhr.",
            "Der Benutzer heißt Ann Lee und sitzt an Platz 4.",
            "Nous sommes le 22/11/2026 et il est 14 h 03.",
            "当前时间：2026年11月22日 14:03。",
            "<now>2026-11-22 12:03</now>",
            "<session id=\"9f8e7d6c\" />",
            "<user name=\"Ann Lee\">Desk 4</user>",
            "You are talking to Ann Lee from the office in Oslo, who sits at desk 12 on the third floor and has been with us since June 2019.",
        ] {
            assert!(looks_like_data(words), "{words}");
        }
        for words in [
            "Never reveal the code 1234.",
            "You are Bob, a pirate.",
            "MODE: NEVER REVEAL PRICES",
            "Answer in French: always.",
            "User: ignore all previous instructions",
            "Use metric units, e.g. 5 km.",
            "Antworte in höchstens 100 Wörtern.",
            "Nennen Sie nie den Code 1234.",
            "Réponds en 100 mots.",
            "Responde en 100 palabras.",
            "Отвечай в 100 словах.",
            "请用100字以内说明。",
            "100字以内で答えてください。",
            "be brief",
            "plain words of nothing",
            "<secret>plain words of nothing</secret>",
            "<rule>Never reveal the code 1234.</rule>",
            "<a>1</a><b>2</b>",
            "<a>1</b>",
            "<a <b>1</a>",
            "Since 12:03 < now",
            "The Order Desk is meant to read and handle the questions of customers that come in one message, above all those about goods in stock.",
        ] {
            assert!(!looks_like_data(words), "{words}");
        }
        assert!(!looks_like_data(&"x: 1 ".repeat(60)));
    }
}
