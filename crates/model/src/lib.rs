//! What a model is and what running it means, without its bytes.
//!
//! [`spec`] holds a [`spec::ModelSpec`]: one model resolved layer by layer. [`families`] say, as data, how the files of each family spell
//! it; [`read`] turns a file's configuration into a spec. [`plan`] lowers a spec to a flat list of ops, which a [`backend::Backend`] runs.

pub mod backend;
pub mod families;
pub mod plan;
pub mod read;
pub mod spec;

pub use plan::{Plan, PlanOptions};
pub use read::{SpecError, read_spec};
pub use spec::ModelSpec;
