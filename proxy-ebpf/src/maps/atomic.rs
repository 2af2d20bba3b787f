//! Atomic operations on words of map values, which the standard library does not have for this target.

use core::arch::asm;

macro_rules! atomics {
    ($($name:ident: $text:literal;)+) => {$(
        /// An atomic operation that orders all reads and writes around it; returns the number before.
        ///
        /// # Safety
        /// `word` is an aligned u64 of a map value, which stays in place until the program ends.
        #[inline(always)]
        pub(super) unsafe fn $name(word: *mut u64, mut operand: u64) -> u64 {
            // SAFETY: the caller's; the standard library has no atomic operations for this target.
            unsafe { asm!($text, word = in(reg) word, operand = inout(reg) operand, options(nostack)) };
            operand
        }
    )+};
}

atomics! {
    fetch_or: "{operand} = atomic_fetch_or((u64 *)({word} + 0), {operand})";
    fetch_add: "{operand} = atomic_fetch_add((u64 *)({word} + 0), {operand})";
    exchange: "{operand} = xchg_64({word} + 0, {operand})";
}
