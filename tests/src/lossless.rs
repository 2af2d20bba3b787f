//! Tests that count losses. A loss may be rare, so such a test must not be run again until it
//! passes.

use crate::announce::announce;
use std::sync::Once;

/// Says that the test of this thread counts losses, in a line `lossless test NAME`, once per
/// process. `cargo xtask test` takes no failure of such a test for one that was only late.
pub fn counts_losses() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| announce("lossless", format_args!("")));
}
