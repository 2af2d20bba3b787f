//! Lines that say something about a test to whoever runs it.

use std::{fmt, io::Write as _, thread};

/// Prints that the test of this thread is of this kind. The line goes past libtest, which keeps to
/// itself what tests print that pass.
pub(crate) fn announce(kind: &str, more: fmt::Arguments<'_>) {
    let thread = thread::current();
    let name = thread.name().unwrap_or("a test");
    // Nobody is there to read it if it cannot be written.
    let _ = writeln!(std::io::stderr(), "\n{kind} test {name}{more}");
}
