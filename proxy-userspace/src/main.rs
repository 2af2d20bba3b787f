//! The `shunt` command.
fn main() {}
