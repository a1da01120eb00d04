//! Sorting by a key with little code. Each of std's sorts takes about 4 KB of WebAssembly for every type and key, which
//! for the short lists here would be a tenth of the module.

/// Sorts `items` by `key`, in place. Not stable: items with equal keys may change their order.
///
/// This is Shell's sort: items are swapped over decreasing gaps, and the last pass over neighbours has little to do.
/// Short lists, the usual case, take that pass and one or two before it. Keys are computed about n^1.3 times.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    let is_before = |items: &[T], a: usize, b: usize| match (items.get(a), items.get(b)) {
        (Some(a), Some(b)) => key(a) < key(b),
        _ => false,
    };
    let mut gap = items.len();
    while gap > 1 {
        // Gaps shrink by a factor of 9/4, as in the best sequences known (Tokuda 1992); the last one is 1.
        gap = (gap * 4 / 9).max(1);
        for end in gap..items.len() {
            let mut at = end;
            while at >= gap && is_before(items, at, at - gap) {
                items.swap(at, at - gap);
                at -= gap;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_std(mut items in prop::collection::vec((0_u16..200, 0_u16..3), 0..300)) {
            let mut sorted = items.clone();
            sorted.sort_unstable();
            sort_by_key(&mut items, |item| *item);
            prop_assert_eq!(&items, &sorted);
            sort_by_key(&mut items, |&(a, b)| std::cmp::Reverse((a, b)));
            sorted.reverse();
            prop_assert_eq!(items, sorted);
        }
    }
}
