//! Which slots of a page a row sees.

use std::ops::Range;

use super::SEGMENT_POSITIONS;

const WORD: usize = u64::BITS as usize;

/// A set of slots of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotSet([u64; SEGMENT_POSITIONS / WORD]);

impl SlotSet {
    /// # Panics
    /// If there is no such slot.
    pub fn insert(&mut self, slot: usize) {
        self.0[slot / WORD] |= 1 << (slot % WORD);
    }

    /// # Panics
    /// If there is no such slot.
    pub fn contains(&self, slot: usize) -> bool {
        self.0[slot / WORD] >> (slot % WORD) & 1 == 1
    }

    /// From the first slot of the set to the last; empty for the empty set.
    pub fn span(&self) -> Range<usize> {
        let mut used = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        let Some((first, first_word)) = used.next() else {
            return 0..0;
        };
        let (last, last_word) = used.next_back().unwrap_or((first, first_word));
        let start = first * WORD + first_word.trailing_zeros() as usize;
        start..(last + 1) * WORD - last_word.leading_zeros() as usize
    }
}

impl FromIterator<usize> for SlotSet {
    fn from_iter<I: IntoIterator<Item = usize>>(slots: I) -> SlotSet {
        let mut set = SlotSet::default();
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

/// The slots that a row sees.
#[derive(Clone, Debug)]
pub enum SeenSlots<'a> {
    /// All of a range.
    Range(Range<usize>),
    /// Some, chosen for the row. The other slots from the first to the last of them hold keys and values, which weigh nothing.
    Chosen(&'a SlotSet),
}

impl SeenSlots<'_> {
    /// From the first slot to the last; empty without a slot.
    pub fn span(&self) -> Range<usize> {
        match self {
            SeenSlots::Range(range) => range.clone(),
            SeenSlots::Chosen(set) => set.span(),
        }
    }
}
