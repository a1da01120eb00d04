//! Kernels of attention: splitting a projection into queries, keys and values; attention of prefill and of decode; and
//! combining partial results.

use super::super::device::{Argument, Array, Bf16, Device, Fault, Part, PartMut};
use super::{
    Heads, MAX_HEAD, MAX_SPLITS, PREFILL_ROWS, address, arguments, check, check_multiple, launch,
};

/// Minimum number of positions in a split, a range of positions of which one partial result of decode attention is
/// computed.
const DECODE_SPLIT: u32 = 256;
const DECODE_BLOCK_KEYS: u32 = 32;
const DECODE_WARPS: u32 = 4;
/// Number of keys, and of values, that the prefill kernel loads to shared memory at once.
const BLOCK_KEYS: u32 = 64;
/// Number of keys, and of values, that the prefill kernel for warpgroups loads to shared memory at once; there is room
/// for two such blocks of each.
const WIDE_BLOCK_KEYS: u32 = 128;

/// A unit of work of prefill attention: some tokens of a segment, and a range of the positions that they attend to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::backend::cuda) struct Item {
    /// Index of the row of queries that belongs to the first of this item's tokens.
    pub(in crate::backend::cuda) query: u32,
    /// Index of the row of the output that belongs to the first of this item's tokens.
    pub(in crate::backend::cuda) output: u32,
    /// Number of tokens, at least 1. Times the query heads that share a key and value head, it is at most
    /// [`PREFILL_ROWS`].
    pub(in crate::backend::cuda) tokens: u32,
    /// Position in its sequence, counted from 0, of the first of this item's tokens.
    pub(in crate::backend::cuda) position: u32,
    /// Index at which the sequence's page table begins among all page tables.
    pub(in crate::backend::cuda) table: u32,
    /// First position whose keys this item reads: a multiple of [`PREFILL_KEYS`](super::PREFILL_KEYS), not after
    /// `position`.
    pub(in crate::backend::cuda) begin: u32,
    /// One past the last position whose keys this item reads; in the last split, one past the last token's position.
    pub(in crate::backend::cuda) end: u32,
    /// Index of this item's range of positions: the positions that its tokens attend to are divided into `splits`
    /// ranges.
    pub(in crate::backend::cuda) split: u32,
    /// Number of ranges into which the positions that the tokens attend to are divided; with 1, this item's result is
    /// final.
    pub(in crate::backend::cuda) splits: u32,
    /// Index of the first token's first partial result, if the positions are divided.
    pub(in crate::backend::cuda) first: u32,
}

impl Item {
    pub(in crate::backend::cuda) const WORDS: usize = size_of::<Self>() / 4;

    /// Returns the fields of this item as the 32-bit words that the kernel reads.
    pub(in crate::backend::cuda) fn words(&self) -> [u32; Self::WORDS] {
        [
            self.query,
            self.output,
            self.tokens,
            self.position,
            self.table,
            self.begin,
            self.end,
            self.split,
            self.splits,
            self.first,
        ]
    }
}

arguments! {
    struct Prefill {
        queries: u64, output: u64, pool: u64, tables: u64, items: u64, sums: u64, stats: u64,
        heads: u32, kv_heads: u32, head_dim: u32, page_shift: u32, scale: f32, unused: u32,
    }
    struct Decode {
        queries: u64, output: u64, pool: u64, tables: u64, lengths: u64, sums: u64, stats: u64,
        heads: u32, kv_heads: u32, head_dim: u32, page_shift: u32, table_stride: u32, scale: f32,
    }
    struct Combine { sums: u64, stats: u64, output: u64, tokens: u64, lengths: u64, heads: u32, head_dim: u32 }
    struct PlaceHeads {
        sums: u64, bias: u64, query_norm: u64, key_norm: u64, rotary: u64, positions: u64, slots: u64, queries: u64,
        pool: u64, heads: u32, kv_heads: u32, head_dim: u32, page_shift: u32, eps: f32, unused: u32,
    }
}

/// A layer's weights for [`place_heads`]: biases, norms and rotary embedding of queries, keys and values.
pub(in crate::backend::cuda) struct HeadWeights<'a> {
    /// Bias of queries, keys and values, in this order; `None` if the model has none.
    pub(in crate::backend::cuda) bias: Option<Part<'a, f32>>,
    /// Weights of the norms of query heads and of key heads; `None` if the model does not norm them.
    pub(in crate::backend::cuda) norms: Option<[Part<'a, f32>; 2]>,
    /// Cosines and sines of the rotary embedding, `[positions][cosines, sines]`.
    pub(in crate::backend::cuda) rotary: Part<'a, f32>,
    pub(in crate::backend::cuda) eps: f32,
}

/// For each row (token), its position in its sequence and where its key and value are stored: `[rows]` each.
#[derive(Clone, Copy)]
pub(in crate::backend::cuda) struct Places<'a> {
    pub(in crate::backend::cuda) positions: Part<'a, u32>,
    /// For each row, page id times tokens of a page, plus the index in the page; [`NO_SLOT`](super::NO_SLOT) for
    /// padding rows.
    pub(in crate::backend::cuda) slots: Part<'a, u32>,
}

/// Splits `sums [rows][queries, keys, values]`, the output of a layer's projection: writes normed and rotated queries
/// to `queries [rows][heads][head_dim]`, and keys (treated likewise) and values to their KV pages in `pool`. The caller
/// has checked that positions are within the rotary table and slots within the pool.
pub(in crate::backend::cuda) fn place_heads(
    device: &mut dyn Device,
    heads: &Heads,
    weights: &HeadWeights<'_>,
    places: Places<'_>,
    sums: Part<'_, Bf16>,
    queries: PartMut<'_, Bf16>,
    pool: PartMut<'_, Bf16>,
) -> Result<(), Fault> {
    let rows = places.positions.len();
    let width = (heads.heads + 2 * heads.kv_heads) * heads.head_dim;
    check_multiple("head_dim", heads.head_dim, 8);
    assert!(heads.head_dim <= MAX_HEAD, "head_dim is {}", heads.head_dim);
    check("slots", places.slots.len(), rows);
    check("sums", sums.len(), rows * width);
    check("queries", queries.len(), rows * heads.queries());
    check("bias", weights.bias.map_or(width, |bias| bias.len()), width);
    for norm in weights.norms.iter().flatten() {
        check("norm", norm.len(), heads.head_dim);
    }
    let argument = PlaceHeads {
        sums: sums.address(),
        bias: address(weights.bias),
        query_norm: address(weights.norms.map(|norms| norms[0])),
        key_norm: address(weights.norms.map(|norms| norms[1])),
        rotary: weights.rotary.address(),
        positions: places.positions.address(),
        slots: places.slots.address(),
        queries: queries.address(),
        pool: pool.address(),
        heads: heads.heads as u32,
        kv_heads: heads.kv_heads as u32,
        head_dim: heads.head_dim as u32,
        page_shift: heads.page_shift(),
        eps: weights.eps,
        unused: 0,
    };
    // SAFETY: the buffers have all rows; the planner has checked positions and slots.
    unsafe { launch(device, "place_heads", [rows, 1, 1], 128, 0, &argument) }
}

/// Buffers on the device for partial results of attention, whose positions were divided into ranges (splits).
pub(in crate::backend::cuda) struct Partials<'a> {
    /// For each partial result, the weighted sum of values before division by the total weight, `[results][head_dim]`.
    pub(in crate::backend::cuda) sums: PartMut<'a, f32>,
    /// For each partial result, the maximum score and the total weight, `[results][2]`.
    pub(in crate::backend::cuda) stats: PartMut<'a, f32>,
}

impl<'a> Partials<'a> {
    pub(in crate::backend::cuda) fn of(
        sums: &'a mut Array<f32>,
        stats: &'a mut Array<f32>,
    ) -> Self {
        Self {
            sums: sums.all_mut(),
            stats: stats.all_mut(),
        }
    }
}

/// The keys and values that attention reads, and the page tables by which it finds them.
#[derive(Clone, Copy)]
pub(in crate::backend::cuda) struct Context<'a> {
    /// Keys and values of all KV pages, in the layer that is computed.
    pub(in crate::backend::cuda) pool: Part<'a, Bf16>,
    /// The page tables of the sequences, whose page ids must all be in the pool.
    pub(in crate::backend::cuda) tables: Part<'a, u32>,
}

impl Context<'_> {
    /// Panics unless 32 bits suffice to count the keys and values of all pages and heads, as the kernels do.
    #[track_caller]
    fn check(&self, heads: &Heads) {
        let vectors = self.pool.len() / heads.head_dim;
        assert!(
            u32::try_from(vectors).is_ok(),
            "the pool has {vectors} keys and values, 4294967295 are the most"
        );
    }
}

/// Queues the attention of the work items `items [items][Item::WORDS]`, which the planner made for these buffers. Final
/// results go to `output`, those of split items to `partials`.
pub(in crate::backend::cuda) fn prefill(
    device: &mut dyn Device,
    heads: &Heads,
    context: Context<'_>,
    items: Part<'_, u32>,
    queries: Part<'_, Bf16>,
    output: PartMut<'_, Bf16>,
    partials: Partials<'_>,
) -> Result<(), Fault> {
    context.check(heads);
    let argument = Prefill {
        queries: queries.address(),
        output: output.address(),
        pool: context.pool.address(),
        tables: context.tables.address(),
        items: items.address(),
        sums: partials.sums.address(),
        stats: partials.stats.address(),
        heads: heads.heads as u32,
        kv_heads: heads.kv_heads as u32,
        head_dim: heads.head_dim as u32,
        page_shift: heads.page_shift(),
        scale: heads.scale(),
        unused: 0,
    };
    let width = heads.width();
    let (kernel, threads, keys) = match (device.has_warpgroups(), width) {
        (false, 64) => ("prefill_64", 128, 2 * BLOCK_KEYS),
        (false, _) => ("prefill_128", 128, 2 * BLOCK_KEYS),
        (true, 64) => ("prefill_wide_64", 256, 4 * WIDE_BLOCK_KEYS),
        (true, _) => ("prefill_wide_128", 256, 4 * WIDE_BLOCK_KEYS),
    };
    let shared = (PREFILL_ROWS + keys as usize) * width * size_of::<Bf16>();
    let grid = [items.len() / Item::WORDS, heads.kv_heads, 1];
    // SAFETY: the planner keeps items within queries, output, tables and partial results.
    unsafe { launch(device, kernel, grid, threads, shared, &argument) }
}

/// Queues the attention of the first `lengths.len()` rows: one token each of different sequences. `lengths` are the
/// numbers of positions that they attend to (at most `longest`, within the page tables, 0 for padding). The page table
/// of row `i` begins at `i * table_stride`.
#[expect(clippy::too_many_arguments, reason = "what the kernel takes")]
pub(in crate::backend::cuda) fn decode(
    device: &mut dyn Device,
    heads: &Heads,
    context: Context<'_>,
    lengths: Part<'_, u32>,
    table_stride: usize,
    longest: u32,
    queries: Part<'_, Bf16>,
    output: PartMut<'_, Bf16>,
    partials: Partials<'_>,
) -> Result<(), Fault> {
    let rows = lengths.len();
    context.check(heads);
    check("tables", context.tables.len(), rows * table_stride);
    check("queries", queries.len(), rows * heads.queries());
    check("output", output.len(), rows * heads.queries());
    let splits = decode_splits(longest);
    if splits > 1 {
        let results = rows * heads.heads * MAX_SPLITS as usize;
        check(
            "partial sums",
            partials.sums.len(),
            results * heads.head_dim,
        );
        check("partial stats", partials.stats.len(), results * 2);
    }
    let width = heads.width();
    let warps = DECODE_WARPS as usize;
    let blocks = (16 + warps * 2 * DECODE_BLOCK_KEYS as usize) * width * size_of::<Bf16>();
    let sums = warps * 16 * (width + 2) * size_of::<f32>();
    let argument = Decode {
        queries: queries.address(),
        output: output.address(),
        pool: context.pool.address(),
        tables: context.tables.address(),
        lengths: lengths.address(),
        sums: partials.sums.address(),
        stats: partials.stats.address(),
        heads: heads.heads as u32,
        kv_heads: heads.kv_heads as u32,
        head_dim: heads.head_dim as u32,
        page_shift: heads.page_shift(),
        table_stride: table_stride as u32,
        scale: heads.scale(),
    };
    let kernel = if width == 64 {
        "decode_64"
    } else {
        "decode_128"
    };
    let grid = [
        rows,
        heads.kv_heads * heads.group().div_ceil(16),
        splits as usize,
    ];
    // SAFETY: the buffers have all rows, partial results have room for every split.
    unsafe { launch(device, kernel, grid, 128, blocks.max(sums), &argument)? };
    if splits == 1 {
        return Ok(());
    }
    combine(device, heads, None, Some(lengths), output, partials, rows)
}

/// Returns the number of ranges (splits) into which decode attention divides the positions of a sequence of `longest`
/// positions, as `split_length` in `decode.cu` does.
pub(in crate::backend::cuda) fn decode_splits(longest: u32) -> u32 {
    let mut split = u64::from(DECODE_SPLIT);
    while split * u64::from(MAX_SPLITS) < u64::from(longest) {
        split *= 2;
    }
    u64::from(longest).div_ceil(split).max(1) as u32
}

/// Combines the partial results of [`prefill`] and writes final ones to `output`. `tokens [tokens][3]` has for each
/// token the output row, the number of splits, and the index of its first partial result.
pub(in crate::backend::cuda) fn combine_items(
    device: &mut dyn Device,
    heads: &Heads,
    tokens: Part<'_, u32>,
    output: PartMut<'_, Bf16>,
    partials: Partials<'_>,
) -> Result<(), Fault> {
    let rows = tokens.len() / 3;
    combine(device, heads, Some(tokens), None, output, partials, rows)
}

fn combine(
    device: &mut dyn Device,
    heads: &Heads,
    tokens: Option<Part<'_, u32>>,
    lengths: Option<Part<'_, u32>>,
    output: PartMut<'_, Bf16>,
    partials: Partials<'_>,
    rows: usize,
) -> Result<(), Fault> {
    let argument = Combine {
        sums: partials.sums.address(),
        stats: partials.stats.address(),
        output: output.address(),
        tokens: address(tokens),
        lengths: address(lengths),
        heads: heads.heads as u32,
        head_dim: heads.head_dim as u32,
    };
    // SAFETY: the launch that wrote the partial results was checked; rows are those of the output.
    unsafe {
        launch(
            device,
            "combine_splits",
            [rows, heads.heads, 1],
            128,
            0,
            &argument,
        )
    }
}
