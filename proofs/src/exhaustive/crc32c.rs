//! SCTP's checksum after a change of ports, against what its definition says of the change.

use proxy_common::crc32c::{multiply, port_change};

use crate::Check;

pub(crate) const CHECKS: &[Check] = &[Check {
        name: "port_change_of_each_bit",
        about: "For every length of a packet from 4 to 65535 bytes and each of the 32 bits of its ports, what the checksum
            changes by is the bit carried over all bytes that follow. Others are sums of these, for it is linear:
            product_by_bits, product_with_zero, step_is_linear, definition_steps_over_bytes.",
        refute: || {
            let mut changes: [u32; 32] = std::array::from_fn(|bit| over_bytes(1 << bit, 4));
            for len in 4..=u16::MAX {
                for (bit, change) in changes.iter_mut().enumerate() {
                    if port_change(1 << bit, len, multiply) != *change {
                        return Some(format!("length = {len}, bit = {bit}"));
                    }
                    *change = over_bytes(*change, 1);
                }
            }
            None
        },
}];

/// A remainder carried over so many bytes of zeroes, bit by bit (RFC 9260, appendix A).
fn over_bytes(remainder: u32, bytes: u32) -> u32 {
    (0..8 * bytes).fold(remainder, |value, _| value >> 1 ^ if value & 1 != 0 { 0x82f6_3b78 } else { 0 })
}
