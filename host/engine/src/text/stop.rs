//! Stop strings: the texts at which an answer ends.

use std::cmp::Reverse;

/// Watches a stream of text for stop strings, at which an answer ends.
///
/// The answer ends before the stop string that is complete first; if several end at the same position, before the
/// longest. The result does not depend on how the text is cut into pieces.
pub struct StopStrings {
    stops: Vec<Stop>,
    /// Text that is held back: the longest suffix of the text so far that may be the beginning of a stop string.
    held: String,
    /// Index of the stop string that was found; `None` if none was.
    met: Option<usize>,
}

/// A stop string, and how much of it the text so far ends with. Read byte by byte (Knuth, Morris and Pratt), so that a
/// text costs at most two comparisons for each of its bytes.
struct Stop {
    text: String,
    /// For each prefix of `text`, from the first byte on: the length of its longest proper suffix that `text` begins
    /// with.
    borders: Vec<usize>,
    /// Length of the longest suffix of the text so far that `text` begins with, in bytes.
    matched: usize,
    #[cfg(test)]
    compared: usize,
}

impl Stop {
    fn new(text: String) -> Self {
        let mut stop = Self {
            borders: vec![0],
            text,
            matched: 0,
            #[cfg(test)]
            compared: 0,
        };
        for at in 1..stop.text.len() {
            stop.push(stop.text.as_bytes()[at]);
            stop.borders.push(stop.matched);
        }
        stop.matched = 0;
        stop
    }

    /// Takes the next byte. Must not be called once the string is met.
    fn push(&mut self, byte: u8) {
        let mut next = Some(self.matched);
        while let Some(matched) = next {
            #[cfg(test)]
            {
                self.compared += 1;
            }
            if self.text.as_bytes()[matched] == byte {
                self.matched = matched + 1;
                return;
            }
            next = matched.checked_sub(1).map(|last| self.borders[last]);
        }
        self.matched = 0;
    }

    fn is_met(&self) -> bool {
        self.matched == self.text.len()
    }
}

impl StopStrings {
    /// Returns a watcher for the strings `stops`, of which empty ones are ignored.
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self {
            stops: stops.into_iter().map(Stop::new).collect(),
            held: String::new(),
            met: None,
        }
    }

    /// Takes the next piece of text. Returns the text that certainly precedes a stop string, and whether a stop string
    /// has been found; from then on, no text is returned. Text that may begin a stop string is held back.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        if self.met.is_some() {
            return (String::new(), true);
        }
        let read = self.held.len();
        let mut text = std::mem::take(&mut self.held) + text;
        for at in read..text.len() {
            let byte = text.as_bytes()[at];
            for stop in &mut self.stops {
                stop.push(byte);
            }
            let met = self.stops.iter().enumerate();
            let met = met.filter(|(_, stop)| stop.is_met());
            if let Some((index, stop)) = met.min_by_key(|(_, stop)| Reverse(stop.matched)) {
                self.met = Some(index);
                text.truncate(at + 1 - stop.matched);
                return (text, true);
            }
        }
        let held = self.stops.iter().map(|stop| stop.matched).max();
        self.held = text.split_off(text.len() - held.unwrap_or(0));
        (text, false)
    }

    /// Returns the stop string that was found; `None` if none was.
    pub fn met(&self) -> Option<&str> {
        self.met
            .and_then(|index| self.stops.get(index))
            .map(|stop| stop.text.as_str())
    }

    /// Ends the text without a stop string: returns the text that was kept because it might have begun one.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;
    use proptest::prelude::*;

    fn stops(stops: &[&str]) -> StopStrings {
        StopStrings::new(stops.iter().map(|stop| (*stop).to_owned()).collect())
    }

    #[test]
    fn what_may_begin_a_stop_is_held_back() {
        let mut watch = stops(&["</end>", "\n\n"]);
        assert_eq!(watch.push("a <"), ("a ".to_owned(), false));
        assert_eq!(watch.push("/e"), (String::new(), false));
        assert_eq!(watch.push("x\n"), ("</ex".to_owned(), false));
        assert_eq!(watch.push("y</en"), ("\ny".to_owned(), false));
        assert_eq!(watch.push("d> z"), (String::new(), true));
        assert_eq!(
            (watch.push("more"), watch.finish()),
            ((String::new(), true), String::new())
        );
    }

    #[test]
    fn what_is_held_comes_at_the_end() {
        let mut watch = stops(&["stop"]);
        assert_eq!(watch.push("non-st"), ("non-".to_owned(), false));
        assert_eq!(
            (watch.finish(), watch.finish()),
            ("st".to_owned(), String::new())
        );
    }

    #[test]
    fn without_stops_everything_passes() {
        for mut watch in [stops(&[]), stops(&[""])] {
            assert_eq!(watch.push("any"), ("any".to_owned(), false));
        }
    }

    /// Returns the length in bytes of the longest suffix of `text` that is a proper prefix of `stop`.
    fn longest_overlap(text: &str, stop: &str) -> usize {
        let starts = stop.char_indices().map(|(end, _)| end).skip(1);
        starts
            .filter(|&end| end <= text.len() && text.as_bytes().ends_with(&stop.as_bytes()[..end]))
            .max()
            .unwrap_or(0)
    }

    fn text(length: std::ops::Range<usize>) -> impl Strategy<Value = String> {
        let character = proptest::sample::select(vec!['a', 'b', 'é', 'è']);
        let characters = proptest::collection::vec(character, length);
        characters.prop_map(|characters| characters.into_iter().collect::<String>())
    }

    proptest! {
        #[test]
        fn what_is_held_back_is_the_longest_overlap(
            chosen in proptest::collection::vec(text(1..7), 0..4),
            pieces in proptest::collection::vec(text(0..5), 0..8),
        ) {
            let mut watch = StopStrings::new(chosen.clone());
            let mut whole = String::new();
            for piece in &pieces {
                whole += piece;
                let (_, met) = watch.push(piece);
                prop_assert_eq!(met, chosen.iter().any(|stop| whole.contains(stop)));
                if met {
                    break;
                }
                let overlaps = chosen.iter().map(|stop| longest_overlap(&whole, stop));
                prop_assert_eq!(watch.held.len(), overlaps.max().unwrap_or(0));
            }
        }
    }

    #[test]
    fn a_byte_costs_two_comparisons_on_average() {
        let stop = |end: &str| "a".repeat(1_023) + end;
        let mut watch = StopStrings::new((0..16).map(|at| stop(["b", "c"][at % 2])).collect());
        let pieces = 10_000;
        for _ in 0..pieces {
            assert!(!watch.push("aaaa").1);
        }
        let compared: usize = watch.stops.iter().map(|stop| stop.compared).sum();
        assert!(compared <= 2 * 16 * (1_024 + 4 * pieces), "{compared}");
        assert_eq!(watch.held.len(), 1_023);
    }

    /// The simplest model: checks the whole text after each character.
    fn model(stops: &[&str], text: &str) -> (String, bool) {
        for end in (1..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let met = stops
                .iter()
                .filter(|stop| text[..end].ends_with(**stop))
                .map(|stop| stop.len())
                .max();
            if let Some(length) = met {
                return (text[..end - length].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    #[test]
    fn the_cut_into_pieces_does_not_matter() {
        let mut random = Random::new(7);
        let mut below = |limit| random.below(limit);
        let mut met = 0;
        for _ in 0..4000 {
            let chosen: Vec<&str> = (0..below(4))
                .map(|_| ["ab", "aab", "b", "bé", "éaé", "abab"][below(6) as usize])
                .collect();
            let pieces: Vec<String> = (0..below(8))
                .map(|_| {
                    (0..below(4))
                        .map(|_| ['a', 'b', 'é'][below(3) as usize])
                        .collect()
                })
                .collect();
            let mut watch = stops(&chosen);
            let mut shown = String::new();
            let mut stopped = false;
            for piece in &pieces {
                let (text, stop) = watch.push(piece);
                shown += &text;
                stopped = stop;
            }
            if !stopped {
                shown += &watch.finish();
            }
            met += u32::from(stopped);
            assert_eq!(
                (shown, stopped),
                model(&chosen, &pieces.concat()),
                "{chosen:?} {pieces:?}"
            );
        }
        assert!(met > 500);
    }
}
