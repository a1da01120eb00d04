//! Recomputes a body's hashes as if parts of the body were absent: the hash chains that identify messages, and the
//! scopes (hashes of the prompt before documents).
//!
//! Volatile spans (texts that change with each request, such as a date) of the prompt's head are left out of the chains
//! that identify chats, and of the documents' scopes. The bytes are not changed: ranges remain those of the original
//! body.

use super::chat::{around, folded, rendered_scope};
use super::edit::replaced;
use super::json::range_in;
use super::{GroupLayout, Parsed};
use crate::tree::Scope;
use std::borrow::Cow;
use std::ops::Range;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

impl Parsed<'_> {
    /// Recomputes the hash chains of messages and the scopes of documents (hashes of the prompt before them) as if the
    /// body were without the ranges `removed`, which must be sorted, and had `tools` as the JSON of the field with the
    /// tools (unchanged if `None`). O(messages + bytes before documents + bytes of the messages from which something is
    /// removed).
    pub(crate) fn rebase(&mut self, tools: Option<&str>, removed: &[Range<usize>]) {
        let mut chain = self.start.chain;
        let mut before = match tools {
            Some(tools) => self.start.before_with(tools),
            None => self.start.before,
        };
        if let Some(front) = &mut self.front {
            front.scope = Scope(before);
        }
        for (at, message) in self.messages.iter_mut().enumerate() {
            let whole = range_in(self.text, message.raw);
            let first = removed.partition_point(|range| range.end <= whole.start);
            let behind = removed.partition_point(|range| range.start < whole.end);
            let own = removed.get(first..behind).unwrap_or_default();
            let (head, tail) = around(message.raw, message.content);
            let content_hash = if own.is_empty() {
                message.content_hash
            } else {
                let content = range_in(self.text, message.content);
                xxh3_128(left(self.text, content, own).as_bytes())
            };
            // As in the parser, each group's scope covers the bytes since the previous group began.
            let (mut done, mut hash) = (whole.start, before);
            for group in &mut message.groups {
                if let GroupLayout::Slots { slots, .. } = &group.place {
                    let end = slots.first().map_or(done, |slot| slot.start);
                    let text = left(self.text, done..end, own);
                    hash = xxh3_64_with_seed(text.as_bytes(), hash);
                    group.scope = Scope(hash);
                    done = end;
                }
            }
            chain = chain.then(&message.role_name, content_hash);
            message.chain = chain;
            let rendered = rendered_scope(before);
            if let Some((_, scope)) = &mut message.entry {
                *scope = rendered;
            }
            if let Some((target, group)) = &mut self.rendered
                && *target == at
            {
                group.scope = rendered;
            }
            before = folded(
                &[
                    head.as_bytes(),
                    &content_hash.to_le_bytes(),
                    tail.as_bytes(),
                ],
                before,
            );
        }
    }
}

/// Returns the substring `range` of `text` without the parts in the ranges `removed`, which must be sorted.
fn left<'a>(text: &'a str, range: Range<usize>, removed: &[Range<usize>]) -> Cow<'a, str> {
    let first = removed.partition_point(|gone| gone.end <= range.start);
    let (start, end) = (range.start, range.end);
    let overlapping = (removed.iter().skip(first)).take_while(|gone| gone.start < end);
    let parts = overlapping.map(|gone| (gone.start.max(start)..gone.end.min(end), ""));
    match parts.clone().next() {
        None => text.get(range).unwrap_or_default().into(),
        Some(_) => replaced(text, range, parts).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;
    use crate::config::Config;

    /// Returns all hashes of a parsed body, as one text.
    fn hashes(parsed: &Parsed<'_>) -> String {
        let messages = parsed.messages.iter().map(|message: &Message<'_>| {
            let groups: Vec<_> = message.groups.iter().map(|group| group.scope).collect();
            format!(
                "{:?} {:?} {groups:?}",
                message.chain,
                message.entry.map(|(_, scope)| scope)
            )
        });
        let messages: Vec<String> = messages.collect();
        let rendered = parsed.rendered.as_ref().map(|(_, group)| group.scope);
        format!(
            "{messages:#?} {rendered:?} {:?}",
            parsed.front.as_ref().map(|group| group.scope)
        )
    }

    #[test]
    fn the_hashes_are_those_of_the_body_without_what_is_removed() {
        let with = |tools: &str, clock: &str| {
            format!(
                r#"{{"user":"u","messages":[{{"role":"system","content":"a{clock}b <doc>x</doc>"}},{{"role":"user","content":[{{"type":"text","text":"r <doc>1</doc><doc>2</doc>"}},{{"type":"text","text":"<doc>3</doc><doc>4</doc>"}}]}},{{"role":"assistant","content":null}},{{"role":"user","content":[{{"type":"text","text":"Why?"}}]}}],"documents":["d"],"tools":{tools}}}"#
            )
        };
        let config = Config::default();
        let plain = with("[1,2]", "");
        let expected = hashes(&super::super::parse(plain.as_bytes(), &config).unwrap());
        for clock in ["", "12:00 ", "at noon"] {
            let body = with("[2,1]", clock);
            let mut parsed = super::super::parse(body.as_bytes(), &config).unwrap();
            let came = hashes(&parsed);
            let start = body.find(&format!("{clock}b <doc>")).unwrap();
            parsed.rebase(
                Some("[1,2]"),
                std::slice::from_ref(&(start..start + clock.len())),
            );
            assert_eq!(hashes(&parsed), expected, "{clock}");
            parsed.rebase(None, &[]);
            assert_eq!(hashes(&parsed), came);
        }
    }
}
