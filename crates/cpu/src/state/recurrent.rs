//! Recurrent memory of one layer of a sequence, kept twice: a call works on a copy, so that a failed one leaves nothing behind.

use std::sync::Arc;

use goldcrest_model::plan::Recurrent;

use crate::buffer::{AlignedVec, AllocError};

/// What the rows so far have made of the memory, and what the call in progress makes of it.
pub struct Memory {
    len: usize,
    /// After the last committed call; `None`: zeros, as before the first row. Forks share it.
    committed: Option<Arc<AlignedVec<f32>>>,
    /// Of the call in progress; anything between calls. Never shared while it is written to.
    pending: Option<Arc<AlignedVec<f32>>>,
    /// Whether the call in progress has taken its copy.
    begun: bool,
}

impl Memory {
    pub fn new(recurrent: &Recurrent) -> Memory {
        Memory {
            len: recurrent.len,
            committed: None,
            pending: None,
            begun: false,
        }
    }

    /// The committed memory, shared; a call of either does not change what the other holds.
    pub fn fork(&self) -> Memory {
        Memory {
            committed: self.committed.clone(),
            pending: None,
            ..*self
        }
    }

    /// Makes room for a call. Calls after the first find it made, unless a fork keeps what was committed before.
    pub fn reserve(&mut self) -> Result<(), AllocError> {
        // A call that panicked has neither committed nor dropped its copy.
        self.begun = false;
        if self.pending.as_mut().and_then(Arc::get_mut).is_none() {
            self.pending = Some(Arc::new(AlignedVec::zeroed(self.len)?));
        }
        Ok(())
    }

    /// The memory as the call in progress has it so far.
    pub fn pending_mut(&mut self) -> &mut [f32] {
        let pending = self.pending.as_mut().and_then(Arc::get_mut);
        let pending = pending.expect("reserved before the call");
        if !self.begun {
            self.begun = true;
            match &self.committed {
                None => pending.fill(0.0),
                Some(committed) => pending.copy_from_slice(committed),
            }
        }
        pending
    }

    pub fn commit(&mut self) {
        if std::mem::take(&mut self.begun) {
            std::mem::swap(&mut self.committed, &mut self.pending);
        }
    }

    pub fn drop_uncommitted(&mut self) {
        self.begun = false;
    }

    /// Zeros again.
    pub fn clear(&mut self) {
        (self.committed, self.pending, self.begun) = (None, None, false);
    }

    /// How many numbers.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn committed(&self) -> Option<&[f32]> {
        self.committed.as_ref().map(|committed| &***committed)
    }

    pub fn bytes(&self) -> usize {
        let copies = [&self.committed, &self.pending];
        copies
            .into_iter()
            .flatten()
            .map(|copy| size_of_val::<[f32]>(copy))
            .sum()
    }
}
