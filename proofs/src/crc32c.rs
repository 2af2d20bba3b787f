//! The polynomial arithmetic of SCTP's checksum, as far as it is no matter of enumeration: see `exhaustive/crc32c.rs`.

use proxy_common::crc32c::{crc32c, multiply};

use crate::symbolic::{any, proofs};

/// x^0 and x^1 in reflected order.
const ONE: u32 = 1 << 31;
const X: u32 = 1 << 30;

/// A polynomial times x, modulo that of Castagnoli: one step of the checksum's definition (RFC 9260, appendix A).
#[inline(always)]
fn times_x(value: u32) -> u32 {
    (value >> 1) ^ if value & 1 != 0 { 0x82f6_3b78 } else { 0 }
}

proofs! {
    /// A product is the sum over the bits of one factor: a·b = a_0·b + (a / x)·(b·x). With the next three, by induction
    /// over those bits, it is linear in the other factor.
    fn product_by_bits() {
        let (a, b): (u32, u32) = (any("a"), any("b"));
        let first = if a & ONE != 0 { b } else { 0 };
        assert!(multiply(a, b) == first ^ multiply(a << 1, times_x(b)));
    }

    /// Nothing times anything is nothing.
    fn product_with_zero() {
        assert!(multiply(0, any("b")) == 0);
    }

    /// One times anything is that, and x times anything is one step of the definition.
    fn product_with_one_and_x() {
        let b: u32 = any("b");
        assert!(multiply(ONE, b) == b);
        assert!(multiply(X, b) == times_x(b));
    }

    /// A step of the definition is linear.
    fn step_is_linear() {
        let (a, b): (u32, u32) = (any("a"), any("b"));
        assert!(times_x(a ^ b) == times_x(a) ^ times_x(b));
    }

    /// The checksum that recomputation uses takes one step of the definition for each bit, from any state (any four bytes)
    /// on, and by any byte. So a change carries over the bytes that follow it.
    fn definition_steps_over_bytes() {
        let [a, b, c, d, e]: [u8; 5] = any("bytes");
        let (mut state, mut bit) = (!crc32c(&[a, b, c, d]) ^ u32::from(e), 0);
        while bit < 8 {
            state = times_x(state);
            bit += 1;
        }
        assert!(crc32c(&[a, b, c, d, e]) == !state);
    }
}
