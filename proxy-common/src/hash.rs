//! The hash by which every node finds the same backend for the same connection.
//!
//! MurmurHash3 for 32 bits (Austin Appleby, public domain): a few multiplications per word,
//! good enough that neighbouring clients and ports spread evenly over a table. It is no
//! secret: who can choose addresses and ports can choose the backend, as with any
//! consistent hash that nodes share without a key.

/// Hash of an address, a pair of ports and a protocol. The words are those of the wire; the
/// result is the same on machines of either byte order.
#[inline(always)]
pub fn words(addr: &[u32], ports: u32, proto: u8) -> u32 {
    let mut hash = 0x5348_554e;
    let mut i = 0;
    while i < addr.len() {
        hash = mix(hash, u32::from_be(addr[i]));
        i += 1;
    }
    hash = mix(mix(hash, ports), proto as u32);
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

#[inline(always)]
fn mix(hash: u32, word: u32) -> u32 {
    let word = word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    (hash ^ word).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_spread_evenly() {
        const SLOTS: u32 = 1009;
        let mut counts = [0u32; SLOTS as usize];
        for host in 0..256u32 {
            for port in 40_000..40_400u32 {
                let hash = words(&[(0x0a00_0000 | host).to_be()], port << 16 | 80, 6);
                counts[(hash % SLOTS) as usize] += 1;
            }
        }
        let mean = f64::from(256 * 400) / f64::from(SLOTS);
        let chi2: f64 = counts.iter().map(|c| (f64::from(*c) - mean).powi(2) / mean).sum();
        // 1,008 degrees of freedom: mean 1,008, standard deviation 45.
        assert!((800.0..1200.0).contains(&chi2), "{chi2}");
    }
}
