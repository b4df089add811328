//! The parts of the `goldcrest` command that more than one command uses.

pub mod directions;
pub mod files;
pub mod generate;
pub mod prompts;
