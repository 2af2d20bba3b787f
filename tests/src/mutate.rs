//! Mutations of IP packets that keep most of their structure, so that what comes after the
//! first check of a length is reached too. Everything follows from the seed of the [`Rng`].

mod headers;

use headers::{Headers, repair};

/// A small generator of pseudo-random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Protocol numbers that mean something to the parser or to the programs, and some that do not.
const PROTOCOLS: [u8; 13] = [0, 1, 4, 6, 17, 41, 43, 44, 51, 58, 60, 132, 255];
const BYTES: [u8; 8] = [0, 1, 7, 8, 0x45, 0x7f, 0x80, 0xff];
const LENGTHS: [u16; 9] = [0, 1, 7, 8, 19, 20, 40, 0x7fff, 0xffff];

/// One to four mutations of the IP packet `packet`; some take bytes from `other`.
pub fn mutate(rng: &mut Rng, packet: &[u8], other: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    for _ in 0..=rng.below(4) {
        packet = once(rng, packet, other);
    }
    // Half of the packets have lengths that fit again, and checksums.
    if rng.once_in(2) {
        repair(&mut packet);
    }
    packet
}

fn once(rng: &mut Rng, mut packet: Vec<u8>, other: &[u8]) -> Vec<u8> {
    let Some(headers) = Headers::of(&packet) else {
        return flip(rng, packet);
    };
    match rng.below(14) {
        0 => return flip(rng, packet),
        1 => {
            let at = rng.below(packet.len());
            packet[at] = rng.pick(&BYTES);
        }
        2 => packet.truncate(1 + rng.below(packet.len())),
        3 => packet.extend(vec![0x5a; 1 + rng.below(64)]),
        4 => {
            let length = if rng.once_in(2) { rng.pick(&LENGTHS) } else { rng.below(2 * packet.len()) as u16 };
            headers.set_length(&mut packet, length);
        }
        5 => headers.set_protocol(&mut packet, rng.pick(&PROTOCOLS)),
        6 => headers.fragment(rng, &mut packet),
        7 => headers.extend(rng, &mut packet),
        8 => set(&mut packet, headers.transport + rng.below(24), rng.number() as u8),
        // TCP's data offset and flags, UDP's length.
        9 => set(&mut packet, headers.transport + rng.pick(&[4, 5, 12, 13]), rng.number() as u8),
        10 => packet = headers.quote(rng, &packet),
        11 => packet = headers.encapsulate(rng, &packet),
        12 => headers.turn_around(&mut packet),
        _ => {
            let at = rng.below(packet.len());
            let from = rng.below(other.len());
            packet.truncate(at);
            packet.extend(&other[from..]);
        }
    }
    packet
}

fn flip(rng: &mut Rng, mut packet: Vec<u8>) -> Vec<u8> {
    if !packet.is_empty() {
        let at = rng.below(packet.len());
        packet[at] ^= 1 << rng.below(8);
    }
    packet
}

fn set(packet: &mut [u8], at: usize, value: u8) {
    if let Some(byte) = packet.get_mut(at) {
        *byte = value;
    }
}
