//! Points of a sequence that it, or another one, can go back to.

use goldcrest_cpu::State;
use goldcrest_model::backend::Backend;

use super::Session;
use crate::engine::Engine;
use crate::steering::Steering;

/// A session as it was at one position. It shares its pages with the session and costs a copy only of those that either writes to later.
pub struct Snapshot {
    engine: Engine,
    state: State,
    ids: Vec<u32>,
    capacity: usize,
    steering: Option<Steering>,
}

/// Why a session cannot go to a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// States belong to the engine that made them.
    #[error("the snapshot was taken from a session of another engine")]
    OtherEngine,
    /// The session was made for less.
    #[error("the snapshot holds {position} positions, more than the session's capacity of {capacity}")]
    CapacityExceeded {
        /// Positions of the snapshot.
        position: usize,
        /// Positions the session was made for.
        capacity: usize,
    },
    /// The model's rotations depend on the capacity, and the two have others.
    #[error(
        "the snapshot is of a session of capacity {found}; with this model it fits no session of capacity {expected}"
    )]
    OtherCapacity {
        /// Capacity of the session that the snapshot was taken from.
        found: usize,
        /// Capacity of this one.
        expected: usize,
    },
}

impl Snapshot {
    /// Number of tokens fed when it was taken.
    pub fn position(&self) -> usize {
        self.ids.len()
    }

    /// The tokens fed then.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Bytes of memory that its state holds. Pages shared with sessions and other snapshots count in each of them.
    pub fn bytes(&self) -> usize {
        self.engine.backend().state_bytes(&self.state)
    }
}

impl Session {
    /// The session as it is now, to go back to with [`Session::restore`].
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            engine: self.engine.clone(),
            state: self.engine.backend().fork(&self.state, self.capacity),
            ids: self.ids.clone(),
            capacity: self.capacity,
            steering: self.steering.clone(),
        }
    }

    /// Becomes what the snapshot holds, steering included, whatever this session was before. The snapshot can be used again, by any
    /// session of the engine.
    ///
    /// # Errors
    /// [`RestoreError`]; nothing changes then.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<(), RestoreError> {
        if !self.engine.is(&snapshot.engine) {
            return Err(RestoreError::OtherEngine);
        }
        let (position, capacity) = (snapshot.position(), self.capacity);
        if position > capacity {
            return Err(RestoreError::CapacityExceeded { position, capacity });
        }
        if snapshot.capacity != capacity && self.engine.capacity_decides_bits() {
            return Err(RestoreError::OtherCapacity {
                found: snapshot.capacity,
                expected: capacity,
            });
        }
        self.state = self.engine.backend().fork(&snapshot.state, capacity);
        self.ids.clone_from(&snapshot.ids);
        self.steering.clone_from(&snapshot.steering);
        Ok(())
    }

    /// A second session at the same position, of the same capacity and steering, that goes its own way from here. It counts nothing yet.
    pub fn fork(&self) -> Session {
        Session {
            engine: self.engine.clone(),
            state: self.engine.backend().fork(&self.state, self.capacity),
            ids: self.ids.clone(),
            capacity: self.capacity,
            steering: self.steering.clone(),
            counters: None,
            wanted: Vec::new(),
        }
    }
}
