//! Index scores and the choice of keys by them: every instruction set against the oracle bit by bit.

use goldcrest_kernels::{
    IndexQuery, Isa, Kernels, KvElement, KvLayout, SEGMENT_POSITIONS, SlotSet, choose_largest, scalar,
};
use proptest::prelude::*;

/// Numbers in (−1, 1).
fn numbers(len: usize) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(-1f32..1.0, len)
}

/// A layout with keys alone, and slots of its page from the first to after the last.
fn keys() -> impl Strategy<Value = (KvLayout, std::ops::Range<usize>)> {
    let element = prop::sample::select(&KvElement::ALL[..]);
    let k_dim = prop::sample::select(&[1, 16, 33, 64, 128][..]);
    let slots = (0..SEGMENT_POSITIONS).prop_flat_map(|start| (Just(start), start + 1..=SEGMENT_POSITIONS));
    (element, k_dim, any::<bool>(), slots).prop_map(|(element, k_dim, plain, (start, end))| {
        let layout = KvLayout {
            k_dim,
            plain_k_dims: if plain { k_dim } else { 0 },
            v_dim: 0,
            element,
        };
        (layout, start..end)
    })
}

proptest! {
    #[test]
    fn every_instruction_set_scores_as_the_oracle(
        ((layout, slots), stored, q, weights) in (keys(), 1usize..11).prop_flat_map(|((layout, slots), heads)| {
            let stored = numbers(layout.k_dim * slots.len());
            (Just((layout, slots)), stored, numbers(heads * layout.k_dim), numbers(heads))
        }),
    ) {
        // What was never written says NaN.
        let mut page = vec![0xff; layout.page_bytes()];
        let mut keys = vec![0.0; stored.len()];
        for (slot, (key, back)) in slots.clone().zip(stored.chunks(layout.k_dim).zip(keys.chunks_mut(layout.k_dim))) {
            layout.write(&mut page, slot, key, &[]);
            layout.read_k(&page, slot, back);
        }
        let expected = scalar::attention::index_scores(&q, &weights, &keys);
        for isa in Isa::available() {
            let mut scores = vec![f32::NAN; slots.len()];
            let query = IndexQuery { q: &q, weights: &weights };
            Kernels::new(isa).unwrap().index_scores(&layout, &page, query, slots.clone(), &mut scores);
            let bits = |scores: &[f32]| scores.iter().map(|score| score.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&scores), bits(&expected), "{}", isa);
        }
    }

    /// Scores of few values, so that many are equal.
    #[test]
    fn the_largest_are_chosen_and_of_equal_ones_the_earlier(
        scores in prop::collection::vec(prop::sample::select(&[0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY][..]), 0..60),
        keep in 0usize..70,
    ) {
        let mut places = vec![7];
        choose_largest(&scores, keep, &mut places);
        let chosen: Vec<usize> = places.iter().map(|place| *place as usize).collect();
        prop_assert_eq!(chosen, scalar::attention::choose_largest(&scores, keep));
    }

    #[test]
    fn sets_of_slots_hold_what_was_put_in(slots in prop::collection::btree_set(0..SEGMENT_POSITIONS, 0..20)) {
        let set: SlotSet = slots.iter().copied().collect();
        for slot in 0..SEGMENT_POSITIONS {
            prop_assert_eq!(set.contains(slot), slots.contains(&slot));
        }
        let span = match (slots.first(), slots.last()) {
            (Some(first), Some(last)) => *first..last + 1,
            _ => 0..0,
        };
        prop_assert_eq!(set.span(), span);
    }
}
