//! The `goldcrest` command.
fn main() {}
