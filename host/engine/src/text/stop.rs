//! Stop strings: the texts at which an answer ends.

/// Watches a stream of text for stop strings, at which an answer ends.
///
/// The answer ends before the stop string that is complete first; if several end at the same position, before the
/// longest. The result does not depend on how the text is cut into pieces.
pub struct StopStrings {
    stops: Vec<String>,
    /// Text that is held back: the longest suffix of the text so far that may be the beginning of a stop string.
    held: String,
    /// Index of the stop string that was found; `None` if none was.
    met: Option<usize>,
}

impl StopStrings {
    /// Returns a watcher for the strings `stops`, of which empty ones are ignored.
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self {
            stops,
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
        let mut text = std::mem::take(&mut self.held) + text;
        let met = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            text.find(stop)
                .map(|start| (start + stop.len(), start, index))
        });
        if let Some((_, start, index)) = met.min() {
            self.met = Some(index);
            text.truncate(start);
            return (text, true);
        }
        let held = self
            .stops
            .iter()
            .map(|stop| longest_overlap(&text, stop))
            .max()
            .unwrap_or(0);
        self.held = text.split_off(text.len() - held);
        (text, false)
    }

    /// Returns the stop string that was found; `None` if none was.
    pub fn met(&self) -> Option<&str> {
        self.met
            .and_then(|index| self.stops.get(index))
            .map(String::as_str)
    }

    /// Ends the text without a stop string: returns the text that was kept because it might have begun one.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
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

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;

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
