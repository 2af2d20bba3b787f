//! SCTP's checksum (RFC 9260, appendix A) after a change of its port numbers.
//!
//! CRC32c is linear: the checksum of (message XOR change) is that of the message XOR
//! the raw remainder of the change. The ports are the first four bytes of the packet,
//! so the remainder of a port change is the four changed bytes carried over all bytes
//! that follow, which is one multiplication by x^(8·n) modulo the polynomial. No byte
//! of the payload is read.

use crate::packet::masked;

/// The Castagnoli polynomial, bits reversed.
const POLY: u32 = 0x82f6_3b78;

/// x^(8·i) for i in 0..256, and x^(8·256·i): every byte count below 65536 is a product
/// of one from each.
static SHIFT_LOW: [u32; 256] = shifts(1);
static SHIFT_HIGH: [u32; 256] = shifts(256);

/// Multiplies two reflected polynomials modulo [`POLY`].
#[inline(always)]
pub const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        // Without branches: the verifier would follow each of them.
        product ^= b & 0u32.wrapping_sub((a >> (31 - bit)) & 1);
        b = (b >> 1) ^ (POLY & 0u32.wrapping_sub(b & 1));
        bit += 1;
    }
    product
}

const fn shifts(step: u32) -> [u32; 256] {
    // x^0 is the top bit in reflected order; x^8 lies eight places below.
    let mut unit = 1u32 << 31;
    let mut i = 0;
    while i < step {
        unit = multiply(unit, 1 << 23);
        i += 1;
    }
    let mut table = [0; 256];
    let mut value = 1u32 << 31;
    let mut i = 0;
    while i < 256 {
        table[i] = value;
        value = multiply(value, unit);
        i += 1;
    }
    table
}

/// The entry that the low byte of `index` names.
#[inline(always)]
fn shift(table: &[u32; 256], index: usize) -> u32 {
    // Never beyond the table; but a panic is a function, which the programs must not contain.
    table.get(masked::<0xff>(index)).copied().unwrap_or(0)
}

/// What to XOR into the checksum field, read as a little-endian number, when the four
/// port bytes, read likewise, change by `ports_xor` in an SCTP packet of `len` bytes.
/// `multiply` is [`multiply`] or does the same.
#[inline(always)]
pub fn port_change(ports_xor: u32, len: u16, multiply: impl Fn(u32, u32) -> u32) -> u32 {
    // The remainder of the four bytes themselves is their value times x^32, that is
    // four more byte steps than the bytes that follow them.
    let low = shift(&SHIFT_LOW, usize::from(len));
    let high = shift(&SHIFT_HIGH, usize::from(len >> 8));
    multiply(multiply(low, high), ports_xor)
}

/// CRC32c of a whole message, as SCTP writes it little-endian into the packet.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (POLY & 0u32.wrapping_sub(crc & 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn a_change_of_ports_equals_a_fresh_sum(
            mut packet in prop::collection::vec(any::<u8>(), 12..1600),
            ports: [u8; 4],
        ) {
            let before = crc32c(&packet);
            let old = u32::from_le_bytes([packet[0], packet[1], packet[2], packet[3]]);
            packet[..4].copy_from_slice(&ports);
            let change = port_change(old ^ u32::from_le_bytes(ports), packet.len() as u16, multiply);
            prop_assert_eq!(before ^ change, crc32c(&packet));
        }
    }
}
