//! Volatile spans that no pattern matches, learned per tenant and model.
//!
//! ```text
//!   request 1   [You are Ada.] [Be brief.] [Desk 4, Ann.] [Cite.]
//!   request 2   [You are Ada.] [Be brief.] [Desk 9, Bob.] [Cite.]
//!   template    [You are Ada.] [Be brief.] <  slot: 2  >  [Cite.]       used from here on
//! ```
//!
//! A **template** is a system text as its stable units and the slots between them. A text belongs to a template if it has
//! all but a few of its units, in order; the other text is in slots. A slot is volatile once it has held two different
//! values, not before, since a constant does no harm. Only hashes of texts are stored.

use super::texts::{MAX_UNITS, Unit};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The templates of one tenant and model.
#[derive(Debug, Default)]
pub(super) struct Learned {
    templates: Vec<Template>,
    now: u64,
    /// A version that grows whenever the set of volatile slots changes.
    pub(super) version: u64,
}

#[derive(Debug)]
struct Template {
    /// Hash and length of each stable unit.
    stable: Vec<(u64, u32)>,
    /// The slots before, between and after the stable units: one more than there are units.
    slots: Vec<Slot>,
    last_used: u64,
}

/// The text between two stable units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    /// Hash of the first text seen between the two units; 0 if there was none.
    first: u64,
    /// Whether the slot has had another value.
    is_volatile: bool,
}

/// A unit of a text, as the learner needs it.
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
    /// Learns from the units of a system text, and returns for each whether it is in a volatile slot. O(units), for a
    /// bounded number of templates.
    pub(super) fn learn(&mut self, units: &[Seen]) -> Vec<bool> {
        let mut volatile = vec![false; units.len()];
        if units.len() > MAX_UNITS {
            return volatile;
        }
        self.now += 1;
        let found = (self.templates.iter().enumerate())
            .filter_map(|(at, template)| Some((at, template.fit(units)?)))
            // The template with most of the text; on a tie the one used last.
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

/// The fit of a text and a template.
struct Fit {
    /// Pairs of a template's stable unit and the text's equal unit.
    pairs: Vec<(usize, usize)>,
    /// Bytes of the paired units.
    bytes: u64,
}

impl Template {
    /// Returns the fit; `None` if the text does not belong to the template.
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

    /// Merges a text into the template, and returns whether that changed the set of volatile slots.
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

    /// Merges the stable units from `from` to `to`, which the text lacks, and the slots around them into one slot.
    fn joined(&self, from: usize, to: usize) -> Slot {
        let units = self.stable.get(from..to).unwrap_or_default();
        let slots = self.slots.get(from..=to).unwrap_or_default();
        let mut held: SmallVec<[u64; 4]> = units.iter().map(|(hash, _)| *hash).collect();
        let first = hashed(held.drain(..));
        Slot {
            first,
            is_volatile: slots.iter().any(|slot| slot.is_volatile),
        }
    }
}

fn hashed(hashes: impl Iterator<Item = u64>) -> u64 {
    let hash = hashes.fold(0, |hash, unit| xxh3_64_with_seed(&unit.to_le_bytes(), hash));
    hash.max(1)
}

/// Returns whether words look like data: a value, a name, a place, a time, or one element that holds such words. Text that
/// reads like an instruction or a persona is never data, since moving it would take away a system message's authority.
pub(super) fn looks_like_data(words: &str) -> bool {
    if words.len() > MAX_DATA_BYTES || words.contains("```") {
        return false;
    }
    if let Some([tag, inside]) = element(words) {
        let is_plain = !(tag.contains('<') || inside.contains('<'));
        let is_calm = |words: &str| words.is_empty() || is_data(words);
        let tells = |words: &str| words.contains(|c: char| c.is_ascii_digit() || c.is_uppercase());
        return is_plain && is_calm(tag) && is_calm(inside) && (tells(tag) || tells(inside));
    }
    !words.contains('<') && is_data(words)
}

/// The attributes and the text of an element that spans all of `words`: `<now>12:03</now>`, `<session id="7"/>`.
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

fn is_data(words: &str) -> bool {
    let mut lower = words.to_ascii_lowercase();
    lower.push(' ');
    let mut list: SmallVec<[&str; 32]> = SmallVec::new();
    for word in lower.split(|c: char| !(c.is_alphanumeric() || c == '\'' || c == '_')) {
        if !word.is_empty() {
            list.push(word);
        }
    }
    let commands = list
        .iter()
        .any(|word| COMMANDS.contains(word) || FOREIGN.contains(word))
        || UNSPACED.iter().any(|word| words.contains(word));
    let opens = list.first().is_some_and(|word| OPENERS.contains(word));
    let persona = list.windows(3).any(|three| match three {
        [one, two, three] => *one == "you" && *two == "are" && !ADDRESSING.contains(three),
        _ => false,
    });
    // A name, a number, or a label with a value.
    let mut chars = words.chars();
    chars.next();
    let tells = words.contains([':', '=', '@', '/'])
        || chars.any(|c| c.is_ascii_digit() || c.is_uppercase());
    !(commands || opens || persona || is_prose(words)) && tells
}

/// Returns true if the text looks like prose rather than a value. A sentence of many plain words is prose even if it
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

/// Words typical of instructions.
const COMMANDS: &[&str] = &[
    "must",
    "mustn't",
    "never",
    "always",
    "should",
    "shouldn't",
    "shall",
    "don't",
    "do",
    "not",
    "cannot",
    "can't",
    "may",
    "please",
    "ensure",
    "ignore",
    "disregard",
    "instead",
    "only",
    "answer",
    "respond",
    "reply",
    "refuse",
    "follow",
    "obey",
    "instructions",
    "instruction",
    "rule",
    "rules",
    "allowed",
    "forbidden",
    "prohibited",
    "required",
    "require",
    "remember",
    "avoid",
    "if",
    "unless",
    "when",
    "whenever",
    "pretend",
    "act",
    "behave",
    "speak",
    "write",
    "call",
    "reveal",
    "prefer",
    "cite",
    "no",
    "without",
];

/// Words of instructions in the languages of other prompts: German, French, Spanish, Italian, Portuguese, Dutch, Russian.
/// The look-up lower-cases only ASCII, so Cyrillic words are listed in both cases.
const FOREIGN: &[&str] = &[
    "antworte",
    "antworten",
    "muss",
    "musst",
    "müssen",
    "soll",
    "sollst",
    "sollen",
    "darf",
    "darfst",
    "niemals",
    "nie",
    "immer",
    "nicht",
    "kein",
    "keine",
    "keinen",
    "bitte",
    "verwende",
    "verwenden",
    "nutze",
    "schreibe",
    "schreib",
    "wenn",
    "falls",
    "nur",
    "réponds",
    "répondez",
    "répondre",
    "dois",
    "doit",
    "devez",
    "jamais",
    "toujours",
    "pas",
    "veuillez",
    "utilise",
    "utilisez",
    "uniquement",
    "responde",
    "responda",
    "debe",
    "debes",
    "deben",
    "nunca",
    "siempre",
    "solo",
    "sólo",
    "utiliza",
    "rispondi",
    "rispondere",
    "deve",
    "devi",
    "sempre",
    "responder",
    "não",
    "apenas",
    "antwoord",
    "moet",
    "nooit",
    "altijd",
    "niet",
    "alleen",
    "gebruik",
    "отвечай",
    "отвечайте",
    "Отвечай",
    "Отвечайте",
    "должен",
    "никогда",
    "Никогда",
    "всегда",
    "Всегда",
    "не",
    "Не",
    "если",
    "Если",
    "только",
    "Только",
    "используй",
    "Используй",
];

/// Words of instructions in languages without spaces between words: Chinese and Japanese.
const UNSPACED: &[&str] = &[
    "请",
    "必须",
    "不要",
    "不得",
    "不能",
    "禁止",
    "务必",
    "应该",
    "应当",
    "回答",
    "只能",
    "如果",
    "必ず",
    "ください",
    "しないで",
    "答え",
];

/// First words of instructions.
const OPENERS: &[&str] = &[
    "use",
    "be",
    "make",
    "let",
    "keep",
    "give",
    "return",
    "output",
    "format",
    "think",
    "explain",
    "summarize",
    "summarise",
    "translate",
    "help",
    "assume",
    "consider",
    "treat",
    "check",
    "verify",
    "include",
    "exclude",
    "begin",
    "start",
    "stop",
    "end",
    "add",
    "remove",
    "read",
    "say",
    "tell",
    "ask",
    "provide",
    "describe",
    "list",
    "show",
    "take",
    "choose",
    "pick",
    "limit",
    "apply",
    "run",
    "execute",
    "search",
    "look",
    "find",
    "go",
    "try",
    "stay",
    "focus",
];

/// Words after `you are` that do not describe a persona.
const ADDRESSING: &[&str] = &[
    "talking",
    "speaking",
    "chatting",
    "assisting",
    "helping",
    "serving",
    "supporting",
    "on",
    "at",
    "in",
    "connected",
    "running",
];

/// Longest unit that may be data, in bytes.
const MAX_DATA_BYTES: usize = 240;

/// Most words of a sentence that are neither names nor numbers, unless a sixth of its words or more are names or numbers.
const MAX_PLAIN_WORDS: u32 = 16;

/// Most units of a text in one slot, and most consecutive units of a template that a text may lack.
const MAX_GAP: usize = 8;

/// Most templates of one tenant and model.
const MAX_TEMPLATES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// The words (one unit each) that are in a volatile slot.
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
