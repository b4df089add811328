//! Layers that carry a state from row to row: the causal convolution, linear attention with decay (delta nets, Mamba-2, lightning
//! attention) and the selective scan of Mamba-1.
//!
//! Every row is one step, however many rows a call has: the chunked forms regroup sums, so their bits would depend on the chunks.
//! Steps of one sequence follow each other; columns (channels, or dimensions of a value) never meet, so threads may share them out by
//! [`ColumnsMut::split_at`] without changing a bit.

mod columns;
mod conv;
mod linear;
mod scan;

pub use columns::{Columns, ColumnsMut};
pub use conv::CausalConv;
pub use linear::{Decay, LinearStep};
pub use scan::ScanStep;
