//! The names that a Rust file uses and defines, read from its tokens.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A path, part by part.
pub(super) type Path = Vec<String>;

/// A file's names. Inline modules count as the file itself.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// The imports and re-exports.
    pub(super) uses: Vec<Use>,
    /// The paths in the code.
    pub(super) paths: BTreeSet<Path>,
    /// Single identifiers in the code, including imported names.
    pub(super) words: BTreeSet<String>,
    /// Names of the items.
    pub(super) items: BTreeSet<String>,
}

/// A name imported by a `use`.
#[derive(Debug)]
pub(super) struct Use {
    /// The item's path; it ends with `*` for all names of a module.
    pub(super) path: Path,
    /// The item's name in this file.
    pub(super) name: String,
    /// True if the item is re-exported.
    pub(super) is_shared: bool,
}

impl Source {
    /// Parses a file.
    ///
    /// # Errors
    /// Returns an error for a text that is not Rust.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let tokens: TokenStream = text.parse().map_err(|error| anyhow!("{error}"))?;
        let mut source = Self::default();
        source.read(tokens);
        Ok(source)
    }

    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut is_shared = false;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Punct(sign) if sign.as_char() == '#' => {
                    at += usize::from(is_sign(tokens.get(at), '!'));
                    if let Some(TokenTree::Group(attribute)) = tokens.get(at) {
                        at += 1;
                        if is_for_tests(attribute) {
                            at = end_of_item(&tokens, at);
                        }
                    }
                }
                TokenTree::Group(group) => {
                    // `pub(crate)`.
                    is_shared &= group.delimiter() == Delimiter::Parenthesis;
                    self.read(group.stream());
                }
                TokenTree::Ident(word) => {
                    let word = word.to_string();
                    let next = tokens.get(at).and_then(ident);
                    match (word.as_str(), next) {
                        ("pub", _) => {
                            is_shared = true;
                            continue;
                        }
                        ("use", _) => {
                            let end = (at..tokens.len()).find(|&end| is_sign(tokens.get(end), ';'));
                            let end = end.unwrap_or(tokens.len());
                            self.import(&tokens[at..end], &Path::new(), is_shared);
                            at = end;
                        }
                        (
                            "struct" | "enum" | "fn" | "trait" | "const" | "static" | "type"
                            | "union",
                            Some(name),
                        ) => {
                            self.items.insert(name);
                        }
                        ("macro_rules", _) => {
                            self.items.extend(tokens.get(at + 1).and_then(ident));
                        }
                        _ => {
                            let mut path = vec![word];
                            while is_sign(tokens.get(at), ':')
                                && is_sign(tokens.get(at + 1), ':')
                                && let Some(part) = tokens.get(at + 2).and_then(ident)
                            {
                                path.push(part);
                                at += 3;
                            }
                            self.words.extend(path.first().cloned());
                            if path.len() > 1 {
                                self.paths.insert(path);
                            }
                        }
                    }
                    is_shared = false;
                }
                _ => is_shared = false,
            }
        }
    }

    /// Reads the tree of a `use` after `prefix`.
    fn import(&mut self, tree: &[TokenTree], prefix: &Path, is_shared: bool) {
        let mut path = prefix.clone();
        let mut name = None;
        for (at, token) in tree.iter().enumerate() {
            match token {
                TokenTree::Group(group) => {
                    let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                    for tree in inside.split(|token| is_sign(Some(token), ',')) {
                        if !tree.is_empty() {
                            self.import(tree, &path, is_shared);
                        }
                    }
                    return;
                }
                TokenTree::Ident(word) if word == "as" => {
                    name = tree.get(at + 1).map(ToString::to_string);
                    break;
                }
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Punct(sign) if sign.as_char() == '*' => path.push("*".to_owned()),
                _ => {}
            }
        }
        if let Some(name) = name.or_else(|| path.last().cloned()) {
            self.uses.push(Use {
                path,
                name,
                is_shared,
            });
        }
    }
}

fn ident(token: &TokenTree) -> Option<String> {
    match token {
        TokenTree::Ident(word) => Some(word.to_string()),
        _ => None,
    }
}

fn is_sign(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(found)) if found.as_char() == sign)
}

/// Returns whether an attribute is `cfg(test)` or `cfg(all(test, …))`.
fn is_for_tests(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

/// Returns the index after the item or field that begins at `at`.
fn end_of_item(tokens: &[TokenTree], mut at: usize) -> usize {
    let mut is_item = false;
    let mut is_use = false;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            TokenTree::Ident(word) => {
                let word = word.to_string();
                is_use |= word == "use";
                is_item |= [
                    "fn", "mod", "struct", "enum", "impl", "trait", "const", "static", "type",
                    "use",
                ]
                .contains(&word.as_str());
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && !is_use => {
                return at;
            }
            TokenTree::Punct(sign)
                if sign.as_char() == ';' || sign.as_char() == ',' && !is_item =>
            {
                return at;
            }
            _ => {}
        }
    }
    at
}
