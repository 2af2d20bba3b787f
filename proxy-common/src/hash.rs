//! Hashes of tuples: one by which every node finds the same backend for the same connection, and one
//! with a key, by which a node alone finds what it has found before.
//!
//! The first is MurmurHash3 for 32 bits (Austin Appleby, public domain): a few multiplications per word,
//! good enough that neighbouring clients and ports spread evenly over a table. It is no
//! secret: who can choose addresses and ports can choose the backend, as with any
//! consistent hash that nodes share without a key.
//!
//! The second is SipHash-1-3 (Aumasson and Bernstein, <https://www.aumasson.jp/siphash/>): without the
//! key nobody can choose tuples that hash alike.

use crate::{Addr, Tuple};

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

/// Hash of a tuple under a key.
#[inline(always)]
pub fn keyed<A: Addr>(key: &[u64; 2], tuple: &Tuple<A>) -> u32 {
    let mut state = SipState::new(key);
    state.add_addr(&tuple.src);
    state.add_addr(&tuple.dst);
    let [ports, proto] = [u64::from(tuple.sport) << 16 | u64::from(tuple.dport), u64::from(tuple.proto)];
    state.add(ports << 8 | proto);
    let hash = state.end();
    (hash ^ hash >> 32) as u32
}

struct SipState([u64; 4]);

impl SipState {
    #[inline(always)]
    fn new(key: &[u64; 2]) -> Self {
        const CONSTANTS: [u64; 4] =
            [0x736f_6d65_7073_6575, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];
        let [a, b, c, d] = CONSTANTS;
        Self([a ^ key[0], b ^ key[1], c ^ key[0], d ^ key[1]])
    }

    #[inline(always)]
    fn add_addr<A: Addr>(&mut self, addr: &A) {
        let words = addr.words();
        let mut i = 0;
        while i + 1 < words.len() {
            self.add(u64::from(words[i + 1]) << 32 | u64::from(words[i]));
            i += 2;
        }
        if i < words.len() {
            self.add(u64::from(words[i]));
        }
    }

    #[inline(always)]
    fn add(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    #[inline(always)]
    fn end(mut self) -> u64 {
        self.0[2] ^= 0xff;
        self.round();
        self.round();
        self.round();
        let [a, b, c, d] = self.0;
        a ^ b ^ c ^ d
    }

    #[inline(always)]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.0 = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    use core::hash::Hasher as _;

    use siphasher::sip::SipHasher13;

    use super::*;
    use crate::{Ip4, Ip6, proto};

    /// Its input is of whole words, so the last word of the reference has the length alone.
    fn reference(key: &[u64; 2], words: &[u64]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(key[0], key[1]);
        words.iter().for_each(|word| hasher.write(&word.to_le_bytes()));
        hasher.finish()
    }

    #[test]
    fn it_is_siphash() {
        for (key, words) in [([0, 0], [1, 2, 3]), ([7, u64::MAX], [u64::MAX, 0, 1 << 63])] {
            let mut state = SipState::new(&key);
            words.iter().for_each(|word| state.add(*word));
            // The length of the input in bytes is the last word's highest byte.
            state.add(24 << 56);
            assert_eq!(state.end(), reference(&key, &words));
        }
    }

    #[test]
    fn every_part_of_a_tuple_and_of_the_key_counts() {
        fn hashes<A: Addr>(one: A, other: A) -> std::vec::Vec<u32> {
            let tuple = Tuple { src: one, dst: other, sport: 1, dport: 2, proto: proto::TCP };
            let tuples = [
                tuple,
                Tuple { src: other, ..tuple },
                Tuple { dst: one, ..tuple },
                Tuple { sport: 3, ..tuple },
                Tuple { dport: 3, ..tuple },
                Tuple { proto: proto::UDP, ..tuple },
            ];
            let keys = [[1, 2], [1, 3], [4, 2]];
            keys.iter().flat_map(|key| tuples.iter().map(|tuple| keyed(key, tuple))).collect()
        }
        for hashes in [
            hashes(Ip4::from([10, 0, 0, 1]), Ip4::from([10, 0, 0, 2])),
            hashes(Ip6::from([7; 16]), Ip6::from([8; 16])),
        ] {
            let distinct: std::collections::HashSet<_> = hashes.iter().collect();
            assert_eq!(distinct.len(), 18);
        }
    }

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
