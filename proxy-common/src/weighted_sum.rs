//! A number that tells whether words are the ones that were summed.

/// A sum of words, each times a number of its own, so that the processor need not wait for one product to begin with
/// the next.
#[derive(Default)]
pub(crate) struct WeightedSum {
    sum: u64,
    words: u32,
}

impl WeightedSum {
    #[inline(always)]
    pub(crate) fn add(&mut self, word: u64) {
        // Positive as a signed number of 32 bits, which the kernel's multiplication takes as it is.
        let weight = (0x9e37_79b1_u32.wrapping_mul(2 * self.words + 1) >> 1) | 1;
        self.sum = self.sum.wrapping_add(word.wrapping_mul(weight.into()));
        self.words += 1;
    }

    /// # Safety
    /// There are so many aligned words.
    #[inline(always)]
    pub(crate) unsafe fn add_all(&mut self, words: *const u64, count: usize) {
        let mut i = 0;
        while i < count {
            // SAFETY: the caller's.
            self.add(unsafe { *words.add(i) });
            i += 1;
        }
    }

    /// The upper bits of a product tell most of its factors.
    #[inline(always)]
    pub(crate) fn end(self) -> u64 {
        self.sum.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
