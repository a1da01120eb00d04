//! What the model is told in words. The order hint: one sentence after the documents that says how the retriever ranked
//! them, so that answers do not suffer from the order that the cache wanted (RAGBoost section 5.3). The location hint:
//! one sentence in the place of a document that an earlier turn of the chat holds already (RAGBoost section 6).
//!
//! Both call documents by the labels that the client gave them.

use crate::sort::sort_by_key;

/// A checked template of order hints, its words escaped for the inside of a JSON string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HintTemplate {
    before: String,
    after: String,
    label_before: String,
    label_after: String,
    separator: String,
}

/// A checked template of location hints, its words escaped for the inside of a JSON string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocationTemplate {
    before: String,
    after: String,
}

/// What is wrong with a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// `{order}` does not occur exactly once.
    NoOrder,
    /// `{label}` does not occur exactly once.
    NoLabel,
    /// `{document}` does not occur exactly once.
    NoDocument,
}

/// A label longer than this many bytes is no name to call a document by; the request gets no hint.
pub const MAX_LABEL_BYTES: usize = 256;

impl HintTemplate {
    /// Checks the words of a hint, `{order}` in `template` once, `{label}` in `label` once.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn new(template: &str, label: &str, separator: &str) -> Result<Self, TemplateError> {
        let (before, after) = once(template, "{order}").ok_or(TemplateError::NoOrder)?;
        let (label_before, label_after) = once(label, "{label}").ok_or(TemplateError::NoLabel)?;
        Ok(Self {
            before: escape(before),
            after: escape(after),
            label_before: escape(label_before),
            label_after: escape(label_after),
            separator: escape(separator),
        })
    }

    /// The hint for documents of these labels, best first, escaped for the inside of a JSON string. `labels` are
    /// escaped already (they are copied from the body as they stand).
    ///
    /// `None` when a label is missing, longer than [`MAX_LABEL_BYTES`] or not unique: a hint that cannot name every
    /// document would mislead.
    #[must_use]
    pub fn render(&self, labels: &[&str]) -> Option<String> {
        if !labels.iter().all(|label| is_name(label)) {
            return None;
        }
        let mut sorted = labels.to_vec();
        sort_by_key(&mut sorted, |label| *label);
        sorted.dedup();
        if sorted.len() != labels.len() {
            return None;
        }
        let mut hint = self.before.clone();
        for (at, label) in labels.iter().enumerate() {
            if at > 0 {
                hint.push_str(&self.separator);
            }
            hint.push_str(&self.label_before);
            hint.push_str(label);
            hint.push_str(&self.label_after);
        }
        hint.push_str(&self.after);
        Some(hint)
    }
}

impl HintTemplate {
    /// The length of the hint that `words`, as between the quotes of a JSON string, begin with; `None` if they begin with
    /// none, or nothing in the template says where one ends.
    pub(crate) fn length(&self, words: &str) -> Option<usize> {
        let labels = words.strip_prefix(&*self.before)?;
        let labels = labels.strip_prefix(&*self.label_before)?;
        let end = [&*self.label_after, &*self.after].concat();
        if self.after.is_empty() {
            return None;
        }
        let at = labels.find(&end)?;
        Some(words.len() - labels.len() + at + end.len())
    }
}

impl LocationTemplate {
    /// Checks the words of a hint, `{document}` in `template` once, `{label}` in `label` once.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn new(template: &str, label: &str) -> Result<Self, TemplateError> {
        let (before, after) = once(template, "{document}").ok_or(TemplateError::NoDocument)?;
        let (label_before, label_after) = once(label, "{label}").ok_or(TemplateError::NoLabel)?;
        Ok(Self {
            before: escape(before) + &escape(label_before),
            after: escape(label_after) + &escape(after),
        })
    }

    /// The hint for the document of this label (escaped already), escaped for the inside of a JSON string; `None` when
    /// the label is missing or longer than [`MAX_LABEL_BYTES`].
    #[must_use]
    pub fn render(&self, label: &str) -> Option<String> {
        is_name(label).then(|| [&self.before, label, &self.after].concat())
    }
}

/// Whether a document can be called by the label.
fn is_name(label: &str) -> bool {
    !label.is_empty() && label.len() <= MAX_LABEL_BYTES
}

/// What stands before and after the only occurrence of `mark`.
fn once<'a>(text: &'a str, mark: &str) -> Option<(&'a str, &'a str)> {
    let (before, after) = text.split_once(mark)?;
    (!after.contains(mark)).then_some((before, after))
}

/// `text` as it stands between the quotes of a JSON string.
fn escape(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap_or_default();
    quoted
        .get(1..quoted.len().saturating_sub(1))
        .unwrap_or_default()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> HintTemplate {
        HintTemplate::new("Read {order}.", "[{label}]", " > ").unwrap()
    }

    #[test]
    fn names_the_documents_best_first() {
        assert_eq!(template().render(&["b", "a"]).unwrap(), "Read [b] > [a].");
    }

    #[test]
    fn is_left_out_when_it_cannot_name_every_document() {
        assert_eq!(template().render(&["a", ""]), None);
        assert_eq!(template().render(&["a", "a"]), None);
        assert_eq!(template().render(&["a", &"x".repeat(257)]), None);
    }

    #[test]
    fn a_hint_is_found_again_up_to_its_end() {
        let hint = template().render(&["b", "a"]).unwrap();
        assert_eq!(
            template().length(&(hint.clone() + " Why?].")),
            Some(hint.len())
        );
        assert_eq!(template().length("Read on [b]."), None);
        let open = HintTemplate::new("Read {order}", "[{label}]", " > ").unwrap();
        assert_eq!(open.length("Read [b] Why?"), None);
    }

    #[test]
    fn a_location_hint_names_its_document() {
        let template = LocationTemplate::new("See \"{document}\".", "[{label}]").unwrap();
        assert_eq!(
            template.render(r"a\u00e9").unwrap(),
            r#"See \"[a\u00e9]\"."#
        );
        assert_eq!(template.render(""), None);
        assert_eq!(template.render(&"x".repeat(257)), None);
        assert_eq!(
            LocationTemplate::new("See it.", "{label}"),
            Err(TemplateError::NoDocument)
        );
    }

    #[test]
    fn its_words_are_escaped_and_labels_are_not_escaped_again() {
        let template = HintTemplate::new("\"{order}\"\n", "{label}", "\t").unwrap();
        assert_eq!(
            template.render(&[r"a\u00e9", "b"]).unwrap(),
            r#"\"a\u00e9\tb\"\n"#
        );
    }
}
