//! A step as lists of work: which tokens are computed, which pages are written, and which queries attend together.
//!
//! The step is [checked](crate::backend::check) first, so nothing after that checks it again.

use crate::TokenId;
use crate::backend::check::{Owners, Write};
use crate::backend::{BackendError, BackendShape, Load, Output, Step};
use crate::models::ModelConfig;

/// The dimensions by which a layer's attention is cut into items, the units of parallel work. An item is some tokens of
/// one segment, each with some of the query heads that share a key and value head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Number of query heads of the model.
    pub(super) heads: usize,
    /// Number of query heads that share a key and value head.
    pub(super) group: usize,
    /// Number of query heads in an attention item (a unit of work: some tokens with some query heads), a divisor of
    /// `group`.
    pub(super) item_heads: usize,
    /// Maximum number of tokens in an attention item (a unit of work: some tokens with some query heads).
    pub(super) item_tokens: usize,
    /// Maximum number of rows in an attention item (a unit of work); a row is one query head of one token.
    pub(super) item_rows: usize,
}

impl Cut {
    /// Returns the dimensions that cut `model`'s attention into items (units of work: some tokens with some query
    /// heads) of at most `item_rows` rows each; a row is one query head of one token.
    pub(super) fn new(model: &ModelConfig, item_rows: usize) -> Self {
        let group = model.group();
        let divides = |heads: &usize| group.is_multiple_of(*heads);
        let item_heads = (1..=group.min(item_rows)).rev().find(divides).unwrap_or(1);
        Self {
            heads: model.heads,
            group,
            item_heads,
            item_tokens: item_rows / item_heads,
            item_rows,
        }
    }
}

/// A token to compute in a step, and where its attention outputs are found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) token: TokenId,
    /// Index of the token among all tokens of the step.
    pub(super) number: u32,
    /// Index of the first attention item (unit of work) that has queries of this token. The items with its further
    /// query heads follow, `next_heads` items apart.
    pub(super) item: u32,
    pub(super) next_heads: u32,
    /// Index of the token within its attention items (units of work): the same in all of them, which differ in the
    /// query heads.
    pub(super) within: u32,
}

/// An attention item, the unit of parallel work: queries that are computed together. It has `tokens` times
/// [`Cut::item_heads`] rows, one for each query head of each token, with the heads of a token adjacent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) segment: u32,
    /// Index of the first of this attention item's tokens among all tokens of the step.
    pub(super) row: u32,
    pub(super) tokens: u32,
    /// Position in its sequence, counted from 0, of the first of this attention item's tokens.
    pub(super) position: u32,
    /// Index of the first of this attention item's query heads among those of the model.
    pub(super) head: u32,
}

/// Tokens that pass through a layer together (rows), with the attention items (units of work) that hold their queries.
#[derive(Default)]
pub(super) struct Selection {
    pub(super) rows: Vec<Row>,
    pub(super) items: Vec<Item>,
}

/// A checked step as lists of work. Planning the next step reuses the memory of the lists.
#[derive(Default)]
pub(super) struct Batch {
    /// Every token of the step, with the attention items (units of work) that hold its queries.
    pub(super) all: Selection,
    /// The tokens whose logits are wanted, in order. After the last layer's keys and values, no other token is needed.
    pub(super) wanted: Selection,
    /// Writes of keys and values to pages, ascending by page.
    pub(super) writes: Vec<Write>,
    /// The step's copies of whole pages from the host pool, ascending by the page that is overwritten.
    pub(super) loads: Vec<Load>,
    owners: Owners,
}

impl Batch {
    /// Checks `step` and replaces the batch's lists of work with those of the step. Returns an error, and leaves the
    /// lists undefined, if the step is malformed. `cut` says how attention is cut into items, the units of parallel
    /// work.
    pub(super) fn plan(
        &mut self,
        step: &Step,
        shape: &BackendShape,
        cut: Cut,
    ) -> Result<(), BackendError> {
        self.all.clear();
        self.wanted.clear();
        shape.check_loads(step, &mut self.loads)?;
        shape.check_segments(step, &mut self.owners, &mut self.writes)?;
        self.writes.sort_unstable_by_key(|write| write.page);
        self.cut(step, cut);
        Ok(())
    }

    fn cut(&mut self, step: &Step, cut: Cut) {
        let mut row = 0;
        for (number, segment) in step.segments.iter().enumerate() {
            let tokens = segment.tokens.as_slice();
            let skipped = match segment.output {
                Output::None => tokens.len(),
                Output::Last | Output::Token(_) => tokens.len() - 1,
                Output::All => 0,
            };
            let mut first = Item {
                segment: number as u32,
                row,
                tokens: 0,
                position: segment.start,
                head: 0,
            };
            self.all.add(tokens, first, cut);
            first.row += skipped as u32;
            first.position += skipped as u32;
            self.wanted.add(&tokens[skipped..], first, cut);
            row += tokens.len() as u32;
        }
    }
}

impl Selection {
    fn clear(&mut self) {
        self.rows.clear();
        self.items.clear();
    }

    /// Adds a row for each of `tokens`, consecutive tokens of one segment, and the attention items (units of work) with
    /// their queries. `first` has the segment, row and position of the first token. Items that share a key and value
    /// head are adjacent, so that a thread finds keys and values in its cache from one item to the next.
    fn add(&mut self, tokens: &[TokenId], first: Item, cut: Cut) {
        let next_heads = tokens.len().div_ceil(cut.item_tokens) as u32;
        let item = self.items.len() as u32;
        for head in (0..cut.heads).step_by(cut.item_heads) {
            let cuts = (0..).step_by(cut.item_tokens);
            self.items.extend(
                tokens
                    .chunks(cut.item_tokens)
                    .zip(cuts)
                    .map(|(tokens, at)| Item {
                        head: head as u32,
                        tokens: tokens.len() as u32,
                        row: first.row + at,
                        position: first.position + at,
                        ..first
                    }),
            );
        }
        let item_tokens = cut.item_tokens as u32;
        self.rows
            .extend(tokens.iter().zip(0..).map(|(&token, at)| Row {
                token,
                number: first.row + at,
                item: item + at / item_tokens,
                next_heads,
                within: at % item_tokens,
            }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::attention::item_rows;
    use crate::backend::cpu::pages::KvType;
    use crate::backend::{PageId, Segment};

    const SHAPE: BackendShape = BackendShape {
        vocabulary: 100,
        max_positions: 64,
        page_tokens: 16,
        pages: 8,
        host_pages: 4,
        page_bytes: 0,
        draws: false,
    };

    const CUT: Cut = Cut {
        heads: 6,
        group: 3,
        item_heads: 3,
        item_tokens: 8,
        item_rows: 24,
    };

    fn segment(tokens: usize, start: u32, pages: &[u32]) -> Segment {
        Segment {
            tokens: vec![7; tokens],
            start,
            pages: pages.iter().copied().map(PageId).collect(),
            output: Output::Last,
        }
    }

    fn plan(segments: Vec<Segment>) -> Result<Batch, String> {
        let mut batch = Batch::default();
        match batch.plan(
            &Step {
                segments,
                ..Step::default()
            },
            &SHAPE,
            CUT,
        ) {
            Ok(()) => Ok(batch),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn work_is_cut_at_pages_and_items() {
        let mut all = segment(20, 10, &[3, 1]);
        all.output = Output::All;
        let batch = plan(vec![all, segment(1, 17, &[0, 2])]).unwrap();
        let writes: Vec<_> = batch
            .writes
            .iter()
            .map(|w| (w.page.0, w.row, w.tokens, w.position))
            .collect();
        assert_eq!(writes, [(1, 6, 14, 16), (2, 20, 1, 17), (3, 0, 6, 10)]);
        let items: Vec<_> = batch
            .all
            .items
            .iter()
            .map(|i| (i.segment, i.row, i.tokens, i.position, i.head))
            .collect();
        assert_eq!(
            items[..4],
            [
                (0, 0, 8, 10, 0),
                (0, 8, 8, 18, 0),
                (0, 16, 4, 26, 0),
                (0, 0, 8, 10, 3),
            ]
        );
        assert_eq!(
            items[4..],
            [
                (0, 8, 8, 18, 3),
                (0, 16, 4, 26, 3),
                (1, 20, 1, 17, 0),
                (1, 20, 1, 17, 3)
            ]
        );
        let row = batch.all.rows[9];
        assert_eq!((row.item, row.next_heads, row.within), (1, 3, 1));
        let row = batch.all.rows[20];
        assert_eq!((row.item, row.next_heads, row.within), (6, 1, 0));
        let wanted: Vec<_> = batch.wanted.rows.iter().map(|row| row.number).collect();
        assert_eq!(wanted, (0..21).collect::<Vec<_>>());
    }

    #[test]
    fn unwanted_rows_are_not_selected() {
        let mut none = segment(3, 0, &[5]);
        none.output = Output::None;
        let batch = plan(vec![
            segment(20, 10, &[3, 1]),
            none,
            segment(1, 17, &[0, 2]),
        ])
        .unwrap();
        assert_eq!(batch.all.rows.len(), 24);
        let rows: Vec<_> = batch
            .wanted
            .rows
            .iter()
            .map(|row| (row.number, row.item, row.within))
            .collect();
        assert_eq!(rows, [(19, 0, 0), (23, 2, 0)]);
        let items: Vec<_> = batch
            .wanted
            .items
            .iter()
            .map(|i| (i.segment, i.row, i.tokens, i.position, i.head))
            .collect();
        assert_eq!(
            items,
            [
                (0, 19, 1, 29, 0),
                (0, 19, 1, 29, 3),
                (2, 23, 1, 17, 0),
                (2, 23, 1, 17, 3)
            ]
        );
    }

    #[test]
    fn malformed_steps_are_refused_with_value_and_limit() {
        let mut foreign = segment(2, 0, &[0]);
        foreign.tokens[1] = 100;
        for (segments, expected) in [
            (vec![segment(0, 0, &[0])], "no tokens"),
            (vec![foreign], "token 100 is not below the vocabulary's 100"),
            (
                vec![segment(60, 5, &[0, 1, 2, 3, 4])],
                "ends at position 65, the model has 64",
            ),
            (
                vec![segment(1, u32::MAX, &[0])],
                "ends at position 4294967296",
            ),
            (
                vec![segment(1, 16, &[0])],
                "ends at position 17, its pages have room for 16",
            ),
            (
                vec![segment(1, 0, &[8])],
                "page 8 is not below the pool's 8",
            ),
            (
                vec![segment(1, 0, &[0, 9])],
                "page 9 is not below the pool's 8",
            ),
            (
                vec![segment(1, 0, &[4]), segment(1, 3, &[4])],
                "page 4 is written by segment 0",
            ),
            (
                vec![segment(20, 0, &[4, 4])],
                "page 4 is written by segment 0",
            ),
            (
                vec![segment(1, 0, &[4]), segment(1, 16, &[4, 5])],
                "segment 1: it reads page 4, which segment 0 writes",
            ),
            (
                vec![segment(1, 16, &[4, 4])],
                "segment 0: it reads page 4, which segment 0 writes",
            ),
        ] {
            let error = plan(segments).err().unwrap();
            assert!(
                error.contains(expected),
                "{error:?} does not say {expected:?}"
            );
        }
    }

    #[test]
    fn a_refused_step_leaves_no_owner_behind() {
        let mut batch = Batch::default();
        let bad = Step {
            segments: vec![segment(1, 0, &[4]), segment(1, 0, &[4])],
            ..Step::default()
        };
        let good = Step {
            segments: vec![segment(1, 0, &[4])],
            ..Step::default()
        };
        assert!(batch.plan(&bad, &SHAPE, CUT).is_err());
        assert!(batch.plan(&good, &SHAPE, CUT).is_ok());
        assert!(batch.plan(&good, &SHAPE, CUT).is_ok());
    }

    #[test]
    fn items_hold_whole_groups_where_they_fit() {
        for (heads, kv_heads, wide, pairs) in [
            (12, 4, (3, 8), (3, 42)),
            (14, 2, (7, 3), (7, 18)),
            (8, 8, (1, 24), (1, 128)),
            (64, 2, (16, 1), (32, 4)),
            (29, 1, (1, 24), (29, 4)),
        ] {
            let json = format!(
                r#"{{"model_type":"llama","hidden_size":64,"num_hidden_layers":1,"num_attention_heads":{heads},
                "num_key_value_heads":{kv_heads},"head_dim":8,"intermediate_size":8,"vocab_size":8,
                "max_position_embeddings":8}}"#
            );
            let model = ModelConfig::parse(&json).unwrap();
            for (kv_type, expected) in [(KvType::F32, wide), (KvType::Bf16x2, pairs)] {
                let cut = Cut::new(&model, item_rows(kv_type));
                assert_eq!((cut.item_heads, cut.item_tokens), expected);
            }
        }
    }
}
