//! What can differ between blocks that carry a state from row to row.

/// The recurrent block of a family's layers that have one.
#[derive(Clone, Copy, Debug)]
pub enum Recurrence {}
