use super::super::lanes;
use super::super::tests::numbers;
use super::*;

/// Returns `values` as pairs of bf16.
fn pairs(values: &[f32]) -> Vec<Pair> {
    let narrow: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
    narrow.as_chunks().0.to_vec()
}

/// Pairs in a tile of the left operands here, which hold a whole block.
const TILE: usize = BLOCK / DEPTH * STEP_PAIRS;

fn left(seed: u32, tiles: usize) -> Vec<Pair> {
    pairs(&numbers(seed, tiles * 2 * TILE))
}

/// Returns a left operand from input `input` of its first tile on.
fn operand(a: &[Pair], input: usize) -> Left<'_> {
    Left {
        pairs: &a[input / DEPTH * STEP_PAIRS..],
        row: DEPTH / 2,
        step: STEP_PAIRS,
        tile: TILE,
        low: None,
        streamed: false,
    }
}

/// Returns the place of pair `pair` of row `row` in a left operand.
fn place(row: usize, pair: usize) -> usize {
    let (step, within) = (pair / (DEPTH / 2), pair % (DEPTH / 2));
    row / ROWS * TILE + step * STEP_PAIRS + row % ROWS * DEPTH / 2 + within
}

fn right(seed: u32, inputs: usize) -> Vec<Pair> {
    pairs(&numbers(seed, inputs * PANEL))
}

/// Multiplies `inputs` of the rows' inputs, starting from zeroes or from what `c` contains.
fn run(
    machine: Machine,
    (a, b): (&[Pair], &[Pair]),
    rows: Range<usize>,
    inputs: Range<usize>,
    c: &mut [f32],
    start: Start,
) {
    machine.ready().multiply(PairProduct {
        a: operand(a, inputs.start),
        rows,
        b: &b[inputs.start / 2 * PANEL..inputs.end / 2 * PANEL],
        next: &[],
        c,
        columns: PANEL,
        start,
    });
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn products_agree_with_f64_on_every_machine() {
    for (number, (rows, inputs)) in [
        (0..1, 32),
        (0..16, 64),
        (16..37, 512),
        (0..48, 288),
        (0..0, 32),
    ]
    .into_iter()
    .enumerate()
    {
        let (a, b) = (left(number as u32, 3), right(9, inputs));
        let before = numbers(5, rows.len() * PANEL + 7);
        for machine in Machine::available() {
            for start in [Start::Zero, Start::Sum] {
                let mut c = before.clone();
                run(machine, (&a, &b), rows.clone(), 0..inputs, &mut c, start);
                for (cell, got) in c.iter().enumerate() {
                    let (row, column) = (rows.start + cell / PANEL, cell % PANEL);
                    let mut expected = f64::from(before[cell]);
                    if row < rows.end {
                        let term = |k: usize, i: usize| {
                            f64::from(a[place(row, k)][i]) * f64::from(b[k * PANEL + column][i])
                        };
                        let sum: f64 = (0..inputs).map(|k| term(k / 2, k % 2)).sum();
                        expected = sum + if start == Start::Sum { expected } else { 0.0 };
                    }
                    assert!(
                        (f64::from(*got) - expected).abs() < 2e-5,
                        "{machine:?}, case {number}, row {row}: {got}, expected {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_rows_bits_do_not_depend_on_rows_beside_it_nor_on_where_the_inputs_are_cut() {
    let (a, b) = (left(1, 3), right(2, BLOCK));
    for machine in Machine::available() {
        let mut whole = vec![0.0; 48 * PANEL];
        run(machine, (&a, &b), 0..48, 0..BLOCK, &mut whole, Start::Zero);
        for rows in [0..1, 0..7, 0..16, 0..17, 16..17, 16..48, 32..45] {
            for cut in [DEPTH, 256, 288, BLOCK - DEPTH] {
                let mut part = vec![f32::NAN; rows.len() * PANEL];
                run(
                    machine,
                    (&a, &b),
                    rows.clone(),
                    0..cut,
                    &mut part,
                    Start::Zero,
                );
                run(
                    machine,
                    (&a, &b),
                    rows.clone(),
                    cut..BLOCK,
                    &mut part,
                    Start::Sum,
                );
                assert!(
                    same_bits(&part, &whole[rows.start * PANEL..rows.end * PANEL]),
                    "{machine:?} {rows:?} cut at {cut}"
                );
            }
        }
    }
}

#[test]
fn rows_that_are_not_wanted_may_hold_anything() {
    let (mut a, b) = (left(1, 1), right(2, 64));
    for machine in Machine::available() {
        let mut clean = vec![0.0; PANEL];
        run(machine, (&a, &b), 0..1, 0..64, &mut clean, Start::Zero);
        for row in 1..ROWS {
            (0..BLOCK / 2).for_each(|pair| a[place(row, pair)] = [bf16::NAN; 2]);
        }
        let mut beside = vec![0.0; PANEL];
        run(machine, (&a, &b), 0..1, 0..64, &mut beside, Start::Zero);
        assert!(same_bits(&clean, &beside), "{machine:?}");
    }
}

#[test]
fn a_product_has_the_same_bits_at_any_stride_and_in_one_vector_of_columns() {
    let (a, b) = (left(3, 3), right(4, 64));
    // The same left operand with rows of 32 pairs and no padding.
    let mut dense = Vec::new();
    for row in 0..48 {
        dense.extend((0..32).map(|pair| a[place(row, pair)]));
    }
    for machine in Machine::available() {
        for rows in [0..5, 0..16, 16..48, 0..37] {
            let mut expected = numbers(1, rows.len() * PANEL);
            let before = expected.clone();
            run(
                machine,
                (&a, &b),
                rows.clone(),
                0..64,
                &mut expected,
                Start::Sum,
            );
            for columns in [LANES, PANEL] {
                // Room for whole tiles, of which the rows that are not wanted are undefined.
                let mut c = before.clone();
                c.resize(rows.len().next_multiple_of(ROWS) * PANEL, 0.0);
                machine.ready().multiply(PairProduct {
                    a: Left {
                        pairs: &dense[rows.start / ROWS * ROWS * 32..],
                        row: 32,
                        step: DEPTH / 2,
                        tile: ROWS * 32,
                        low: None,
                        streamed: false,
                    },
                    rows: 0..rows.len(),
                    b: &b,
                    next: &[],
                    c: &mut c,
                    columns,
                    start: Start::Sum,
                });
                for row in 0..rows.len() {
                    let (got, before) = (&c[row * PANEL..], &before[row * PANEL..]);
                    let expected = &expected[row * PANEL..][..columns];
                    assert!(
                        same_bits(&got[..columns], expected)
                            && same_bits(&got[columns..PANEL], &before[columns..PANEL]),
                        "{machine:?} {rows:?} {columns} columns, row {row}"
                    );
                }
            }
        }
    }
}

/// The manual's semantics by hand: sums that lose or keep a small term depending on the order of additions.
#[test]
fn emulated_tiles_add_even_and_odd_inputs_apart_and_then_join_them() {
    let (mut a, mut b) = (vec![[bf16::ZERO; 2]; TILE], right(0, DEPTH));
    a[..DEPTH / 2].fill([bf16::ONE; 2]);
    b.fill([bf16::ZERO; 2]);
    let big = bf16::from_f32(2f32.powi(30));
    // Column 0: the large terms are even and cancel each other, so the small odd one survives.
    (b[0][0], b[PANEL][1], b[2 * PANEL][0]) = (big, bf16::ONE, -big);
    // Column 1: the small term is even too and is lost.
    (b[1][0], b[PANEL + 1][0], b[2 * PANEL + 1][0]) = (big, bf16::ONE, -big);
    // Column 2: a subnormal input counts as zero.
    b[2][0] = bf16::from_bits(1);
    let mut c = vec![0.0; PANEL];
    run(
        Machine::Emulated,
        (&a, &b),
        0..1,
        0..DEPTH,
        &mut c,
        Start::Zero,
    );
    assert_eq!(c[..3], [1.0, 0.0, 0.0]);
    // The previous content of the output is added last.
    c[0] = 2f32.powi(30);
    run(
        Machine::Emulated,
        (&a, &b),
        0..1,
        0..DEPTH,
        &mut c,
        Start::Sum,
    );
    assert_eq!(c[0], 2f32.powi(30));
}

#[test]
fn amx_computes_the_bits_that_the_manual_writes_out() {
    let Some(amx) = Machine::available()
        .into_iter()
        .find(|machine| matches!(machine, Machine::Amx(_)))
    else {
        return;
    };
    let (a, b) = (left(1, 3), right(2, BLOCK));
    let (mut real, mut emulated) = (vec![0.0; 37 * PANEL], vec![0.0; 37 * PANEL]);
    run(amx, (&a, &b), 0..37, 0..BLOCK, &mut real, Start::Zero);
    run(
        Machine::Emulated,
        (&a, &b),
        0..37,
        0..BLOCK,
        &mut emulated,
        Start::Zero,
    );
    assert!(same_bits(&real, &emulated));
}

#[test]
fn products_beyond_their_slices_are_refused() {
    let (a, b) = (left(1, 2), right(2, BLOCK + DEPTH));
    let attempt = |a_pairs: usize, b_pairs: usize, c_floats: usize, rows: Range<usize>| {
        let (a, b, mut c) = (&a[..a_pairs], &b[..b_pairs], vec![0f32; c_floats]);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Machine::Emulated.ready().multiply(PairProduct {
                a: operand(a, 0),
                rows,
                b,
                next: &[],
                c: &mut c,
                columns: PANEL,
                start: Start::Zero,
            });
        }))
        .is_ok()
    };
    let (tile, step) = (STEP_PAIRS, 16 * PANEL);
    assert!(attempt(tile, step, PANEL, 0..1));
    assert!(!attempt(tile - 1, step, PANEL, 0..1));
    assert!(!attempt(tile, step - 1, PANEL, 0..1));
    assert!(!attempt(tile, 0, PANEL, 0..1));
    assert!(!attempt(tile, step, PANEL - 1, 0..1));
    assert!(!attempt(tile, step, 17 * PANEL, 0..17));
    assert!(!attempt(2 * TILE, step, PANEL, 1..2));
    assert!(!attempt(2 * TILE, BLOCK / 2 * PANEL + step, PANEL, 0..1));
}

#[test]
fn numbers_in_two_parts_are_multiplied_to_sixteen_bits() {
    let (inputs, rows) = (64, 21);
    let (wide_a, wide_b) = (numbers(1, 32 * inputs), numbers(2, inputs * PANEL));
    // Rows of a high part and a low part, without padding; all high parts of the right operand before its low ones.
    let mut a = Vec::new();
    for row in wide_a.chunks(inputs) {
        for part in [0, 1] {
            let part = row.iter().map(|x| lanes::split(*x)[part]);
            a.extend(part.collect::<Vec<_>>().as_chunks::<2>().0);
        }
    }
    let mut b = Vec::new();
    for part in [0, 1] {
        for pair in 0..inputs / 2 {
            b.extend((0..PANEL).map(|column| {
                let at = |input: usize| wide_b[input * PANEL + column];
                [at(2 * pair), at(2 * pair + 1)].map(|x| lanes::split(x)[part])
            }));
        }
    }
    for machine in Machine::available() {
        for (streamed, next) in [(false, &[][..]), (true, &b)] {
            let mut c = vec![0.0; rows * PANEL];
            machine.ready().multiply(PairProduct {
                a: Left {
                    pairs: &a,
                    row: inputs,
                    step: DEPTH / 2,
                    tile: ROWS * inputs,
                    low: Some(inputs / 2),
                    streamed,
                },
                rows: 0..rows,
                b: &b,
                next,
                c: &mut c,
                columns: PANEL,
                start: Start::Zero,
            });
            for (cell, got) in c.iter().enumerate() {
                let (row, column) = (cell / PANEL, cell % PANEL);
                let term = |input: usize| {
                    f64::from(wide_a[row * inputs + input])
                        * f64::from(wide_b[input * PANEL + column])
                };
                let expected: f64 = (0..inputs).map(term).sum();
                let size: f64 = (0..inputs).map(|input| term(input).abs()).sum();
                let error = (f64::from(*got) - expected).abs();
                assert!(
                    error < size * 2f64.powi(-15),
                    "{machine:?}, cell {cell}: {error}"
                );
            }
        }
    }
}
