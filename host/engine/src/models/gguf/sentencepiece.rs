//! Vocabularies of SentencePiece with a score for each token (`tokenizer.ggml.model` `llama`), as the files of
//! Gemma and Llama 2 have them.
//!
//! SentencePiece begins with characters, and again and again joins the neighbours whose joint token has the best score.
//! A BPE does the same when every way to split a token into two tokens is a merge, the merges of the best score first
//! (`generate_merges` of transformers, `convert_slow_tokenizer.py`).

use std::collections::HashMap;

/// Maximum length in bytes of a token of a vocabulary that results from a merge; real ones have up to about a hundred.
const MAX_TOKEN: usize = 256;
/// Maximum number of merges of one vocabulary; Gemma 3 has about half a million.
const MAX_MERGES: usize = 1 << 22;

/// Returns the merges (pairs of tokens, in order of priority) of the BPE tokenizer that is equivalent to a
/// SentencePiece tokenizer with these scores: every pair whose concatenation is a token for which `is_joined` is true,
/// given its index.
pub(super) fn merges<'a>(
    tokens: &[&'a str],
    scores: &[f64],
    is_joined: impl Fn(usize) -> bool,
) -> Result<Vec<[&'a str; 2]>, String> {
    let known: HashMap<&str, usize> = tokens.iter().copied().zip(0..).collect();
    let mut merges = Vec::new();
    for (id, &token) in tokens.iter().enumerate().filter(|(id, _)| is_joined(*id)) {
        if token.len() > MAX_TOKEN {
            return Err(format!(
                "token {id} has {} bytes, supported: {MAX_TOKEN}",
                token.len()
            ));
        }
        let score = scores.get(id).copied().unwrap_or_default();
        let characters = token.chars().count();
        let splits = token.char_indices().enumerate().skip(1);
        let splits = splits.filter_map(|(left, (at, _))| {
            let pair = <[&str; 2]>::from(token.split_at(at));
            let ids = (*known.get(pair[0])?, *known.get(pair[1])?);
            Some((ids, (score, left, characters - left), pair))
        });
        let first = merges.len();
        merges.extend(splits);
        if merges.len() > MAX_MERGES {
            return Err(format!(
                "its tokens are the results of more than {MAX_MERGES} merges"
            ));
        }
        merges[first..].sort_by_key(|(ids, ..)| *ids);
    }
    // A stable sort: pairs of one score and one length stay in the order of their tokens.
    merges.sort_by(|(_, one, _), (_, other, _)| {
        let by_score = other.0.total_cmp(&one.0);
        by_score.then((other.1, other.2).cmp(&(one.1, one.2)))
    });
    Ok(merges.into_iter().map(|(.., pair)| pair).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_of_a_token_is_a_merge_and_the_best_score_comes_first() {
        let tokens = ["a", "b", "c", "ab", "bc", "abc", "ä", "äb", "<0x61>"];
        let scores = [0.0, 0.0, 0.0, -2.0, -1.0, -3.0, 0.0, -1.0, 0.0];
        let pairs = merges(&tokens, &scores, |_| true).unwrap();
        let expected = [["b", "c"], ["ä", "b"], ["a", "b"], ["ab", "c"], ["a", "bc"]];
        assert_eq!(pairs, expected);
        assert!(merges(&tokens, &[], |id| id == 0).unwrap().is_empty());
        let long = "a".repeat(MAX_TOKEN + 1);
        let error = merges(&["a", &long], &scores, |_| true).unwrap_err();
        assert_eq!(error, "token 1 has 257 bytes, supported: 256");
    }
}
