//! The parts of the `goldcrest` command.

pub mod verify;
