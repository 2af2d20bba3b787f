//! Differences of words, as far as they are no matter of enumeration: see `exhaustive/checksum.rs`.

use proxy_common::checksum::{diff, fold, update, update_transport};

use crate::symbolic::{any, proofs};

/// The modulus of 32-bit one's-complement sums, a multiple of that of 16-bit ones.
const MODULUS: u64 = u32::MAX as u64;

/// A sum with what exceeds 32 bits added at its end.
#[inline(always)]
fn end_around(sum: u64) -> u64 {
    (sum & MODULUS) + (sum >> 32)
}

/// A difference of `N` words is the sum of what is new and what is not old any more, folded twice.
#[inline(always)]
fn is_sum<const N: usize>() {
    let (old, new): ([u32; N], [u32; N]) = (any("old words"), any("new words"));
    let (mut exact, mut i) = (0u64, 0);
    while i < N {
        // In the order of the code, which the solver then need not prove to be no matter.
        exact += u64::from(!old[i]) + u64::from(new[i]);
        i += 1;
    }
    let once = end_around(exact);
    assert!(once >> 32 <= 1);
    let twice = end_around(once);
    // Nothing is lost where 32 bits are kept of it.
    assert!(twice <= MODULUS);
    assert!(u64::from(diff(&old, &new)) == twice);
}

proofs! {
    /// The difference of one word (ports, IPv4) is new - old modulo 2^32 - 1: the sum of new and not old, folded twice.
    fn difference_of_a_word() {
        is_sum::<1>();
    }

    /// The same of two words. Each word of an IPv6 address is added by the same round.
    fn difference_of_two_words() {
        is_sum::<2>();
    }

    /// What is not old is -old modulo 2^32 - 1.
    fn complement_is_negation() {
        let old: u32 = any("old word");
        assert!(u64::from(!old) == MODULUS - u64::from(old));
    }

    /// Folding changes a sum by a multiple of 2^32 - 1, and makes zero of zero alone.
    fn folding_keeps_the_remainder() {
        let sum: u64 = any("sum");
        let folded = end_around(sum);
        assert!(folded == sum - (sum >> 32) * MODULUS);
        assert!((folded == 0) == (sum == 0));
    }

    /// A field is updated by the folded difference: two differences that fold alike update alike.
    fn update_looks_at_the_folded_difference() {
        let (field, difference): (u16, u32) = (any("field"), any("difference"));
        assert!(update(field, difference) == update(field, u32::from(fold(difference))));
    }

    /// So does the field of a transport header, by the sum of the two folded differences.
    fn update_of_a_transport_looks_at_folded_differences() {
        let (field, addresses, ports): (u16, u32, u32) = (any("field"), any("addresses"), any("ports"));
        let folded = update(field, u32::from(fold(addresses)) + u32::from(fold(ports)));
        let tcp = update_transport(field, addresses, ports, false);
        let udp = update_transport(field, addresses, ports, true);
        assert!(tcp == folded);
        assert!(udp == if field == 0 { 0 } else if folded == 0 { 0xffff } else { folded });
    }
}
