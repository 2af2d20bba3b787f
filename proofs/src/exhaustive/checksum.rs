//! The Internet checksum against arithmetic modulo 65535, of which one's-complement sums are the remainders: 0 for a sum
//! of nothing but zeroes, else 1 to 65535.

use proxy_common::checksum::{fold, sum, update, update_transport};

use crate::Check;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        name: "fold_is_the_remainder",
        about: "Any 32-bit sum folds to its remainder modulo 65535, and to 0 only if it is 0. Folded again it stays. With the
            bytes of each word swapped it folds to the same with bytes swapped: the byte order is no matter.",
        refute: || {
            let holds = |value: &u32| {
                let folded = fold(*value);
                folded == remainder(*value)
                    && fold(folded.into()) == folded
                    && fold(value.swap_bytes()) == folded.swap_bytes()
            };
            (0..=u32::MAX).find(|value| !holds(value)).map(|value| format!("sum = {value:#x}"))
        },
    },
    Check {
        name: "update_is_the_sum_anew",
        about: "Any field of a sum that is not 0, updated by any folded difference, is that of the sum anew (RFC 1624).
            Assumes: something that is covered is not 0, as a pseudo header's protocol, or the version of an IP header.",
        refute: || {
            pairs().find_map(|(sum, difference)| {
                let anew = !remainder(u32::from(sum) + u32::from(difference));
                let holds = sum == 0 || update(!sum, difference.into()) == anew;
                (!holds).then(|| format!("sum = {sum:#x}, difference = {difference:#x}"))
            })
        },
    },
    Check {
        name: "transport_update_is_the_sum_anew",
        about: "The same of a TCP field; of a UDP field too, of which 0 is sent as 65535, but that 0 stays: there is no
            checksum. A UDP field that is not 0 never becomes 0.
            Assumes: as above.",
        refute: || {
            pairs().find_map(|(sum, difference)| {
                let anew = !remainder(u32::from(sum) + u32::from(difference));
                let sent = |field: u16| if field == 0 { 0xffff } else { field };
                let tcp = update_transport(!sum, difference.into(), 0, false);
                let udp = update_transport(sent(!sum), 0, difference.into(), true);
                let none = update_transport(0, difference.into(), 0, true);
                let holds = sum == 0 || (tcp, udp, none) == (anew, sent(anew), 0);
                (!holds).then(|| format!("sum = {sum:#x}, difference = {difference:#x}"))
            })
        },
    },
    Check {
        name: "sum_adds_words",
        about: "The sum over bytes that recomputation uses adds each word, and a last odd byte, modulo 65535; it is 0 only if
            all are 0, and stays below 2^17, so that by induction it is right for packets of any length.",
        refute: || {
            pairs().find_map(|(before, word)| {
                let [high, low] = word.to_be_bytes();
                let (even, odd) = (sum(&[high, low], before.into()), sum(&[high], before.into()));
                let holds = even <= 0xffff
                    && odd < 1 << 17
                    && fold(even) == remainder(u32::from(before) + u32::from(word))
                    && fold(odd) == remainder(u32::from(before) + (u32::from(high) << 8));
                (!holds).then(|| format!("sum = {before:#x}, word = {word:#x}"))
            })
        },
    },
];

/// The one's-complement sum that stands for a number.
fn remainder(value: u32) -> u16 {
    if value == 0 { 0 } else { ((value - 1) % 65535 + 1) as u16 }
}

/// All pairs of 16-bit numbers.
fn pairs() -> impl Iterator<Item = (u16, u16)> {
    (0..=u32::MAX).map(|both| ((both >> 16) as u16, both as u16))
}
