//! The torpor command.
fn main() {}
