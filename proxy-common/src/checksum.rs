//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

/// Folds a 32-bit one's-complement sum to 16 bits.
#[inline(always)]
pub fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The one's-complement sum of `new` minus `old`, both of the same length, as
/// `bpf_l4_csum_replace` takes it: unfolded to 32 bits, in the byte order of memory.
#[inline(always)]
pub fn diff(old: &[u32], new: &[u32]) -> u32 {
    let mut sum = 0u64;
    let mut i = 0;
    while i < old.len() && i < new.len() {
        sum += u64::from(!old[i]) + u64::from(new[i]);
        i += 1;
    }
    // Each pair adds less than 2^33, and there are at most four: twice is enough.
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum as u32
}

/// A checksum field after the covered bytes changed by `diff` (RFC 1624, eqn. 3).
#[inline(always)]
pub fn update(field: u16, diff: u32) -> u16 {
    !fold(u32::from(fold(diff)) + u32::from(!field))
}

/// The checksum field of a TCP or UDP header after the addresses in its pseudo header and the ports changed by
/// these. `zero_is_none` is true for UDP, whose zero says that there is no checksum, and stays (RFC 768).
#[inline(always)]
pub fn update_transport(field: u16, addresses: u32, ports: u32, zero_is_none: bool) -> u16 {
    if zero_is_none && field == 0 {
        return 0;
    }
    let updated = update(field, u32::from(fold(addresses)) + u32::from(fold(ports)));
    // A sum of zero is sent as its other representation.
    if zero_is_none && updated == 0 { 0xffff } else { updated }
}

/// The sum of `bytes` as 16-bit words in network order, added to `sum`.
pub fn sum(bytes: &[u8], mut sum: u32) -> u32 {
    let mut words = bytes.chunks_exact(2);
    for word in &mut words {
        sum += u32::from(u16::from_be_bytes([word[0], word[1]]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    if let [last] = words.remainder() {
        sum += u32::from(*last) << 8;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn checksum(bytes: &[u8]) -> u16 {
        !fold(sum(bytes, 0))
    }

    #[test]
    fn example_of_rfc_1071() {
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0)), 0xddf2);
    }

    proptest! {
        #[test]
        fn an_update_equals_a_fresh_sum(words in prop::collection::vec(any::<u32>(), 5), at in 0usize..5, new: u32) {
            let bytes = |w: &[u32]| w.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
            let old = words[at];
            let before = u16::from_ne_bytes(checksum(&bytes(&words)).to_be_bytes());
            let mut changed = words.clone();
            changed[at] = new;
            // All-zero data is the one case in which the two zeros of one's complement differ.
            prop_assume!(words.iter().any(|w| *w != 0) && changed.iter().any(|w| *w != 0));
            let after = u16::from_ne_bytes(checksum(&bytes(&changed)).to_be_bytes());
            prop_assert_eq!(update(before, diff(&[old], &[new])), after);
        }
    }
}
