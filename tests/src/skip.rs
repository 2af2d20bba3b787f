//! Tests that this machine cannot run.

use crate::announce::announce;

/// Says that the test of this thread was not run, and why, in a line that `cargo xtask test`
/// counts.
pub fn skipped(reason: &str) {
    announce("skipped", format_args!(": {reason}"));
}
