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

/// Writes `new` where `old` is; returns what was there. Orders all reads and writes around it.
///
/// # Safety
/// As for the others.
#[inline(always)]
pub(super) unsafe fn compare_exchange(word: *mut u64, old: u64, new: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut found = old;
        // SAFETY: the caller's. The instruction has what it compares with in this register.
        unsafe {
            asm!(
                "r0 = cmpxchg_64({word} + 0, r0, {new})",
                word = in(reg) word,
                new = in(reg) new,
                inout("r0") found,
                options(nostack)
            );
        }
        found
    }
    // Where the code is only looked at, no register has this name.
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
        // SAFETY: the caller's.
        let word = unsafe { AtomicU64::from_ptr(word) };
        word.compare_exchange(old, new, SeqCst, SeqCst).unwrap_or_else(|found| found)
    }
}

atomics! {
    fetch_or: "{operand} = atomic_fetch_or((u64 *)({word} + 0), {operand})";
    fetch_add: "{operand} = atomic_fetch_add((u64 *)({word} + 0), {operand})";
    exchange: "{operand} = xchg_64({word} + 0, {operand})";
}
