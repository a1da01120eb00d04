//! Sorting by a key, small in code: std's sorts take some 4 KB of WebAssembly for every type and key, which for the short
//! lists here is a tenth of the module.

/// Sorts by `key`, in place; the order of items of one key is not kept. O(n log n) keys are computed.
pub(crate) fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    if items.len() <= SHORT {
        insertion_sort(items, &key);
        return;
    }
    // Heapsort: a heap whose largest item, the first one, changes places with the last one that is not sorted yet.
    for top in (0..items.len() / 2).rev() {
        sift_down(items, top, &key);
    }
    for end in (1..items.len()).rev() {
        items.swap(0, end);
        if let Some(heap) = items.get_mut(..end) {
            sift_down(heap, 0, &key);
        }
    }
}

/// Items from which a heap is faster.
const SHORT: usize = 32;

fn insertion_sort<T, K: Ord>(items: &mut [T], key: &impl Fn(&T) -> K) {
    let is_before = |items: &[T], a: usize, b: usize| match (items.get(a), items.get(b)) {
        (Some(a), Some(b)) => key(a) < key(b),
        _ => false,
    };
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 && is_before(items, at, at - 1) {
            items.swap(at, at - 1);
            at -= 1;
        }
    }
}

/// Makes a heap of what stands below `top`, where only the item at `top` may be too small.
fn sift_down<T, K: Ord>(heap: &mut [T], mut top: usize, key: &impl Fn(&T) -> K) {
    while let Some(left) = heap.get(2 * top + 1) {
        let mut child = 2 * top + 1;
        let mut largest = key(left);
        if let Some(right) = heap.get(child + 1).map(key)
            && right > largest
        {
            largest = right;
            child += 1;
        }
        if heap.get(top).is_none_or(|item| key(item) >= largest) {
            return;
        }
        heap.swap(top, child);
        top = child;
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
