//! Maglev lookup tables (Eisenbud et al., NSDI 2016, §3.4): which backend stands in which
//! slot, so that every node that knows the same backends makes the same table, each backend
//! has its share to within a slot, and few slots change when one backend comes or goes.
//!
//! Ids, offsets and the order in which backends became known have no say here.

use std::{hash::Hasher, net::SocketAddr};

use siphasher::sip128::{Hasher128, SipHasher13};

/// Slots per backend that the paper asks for.
const SLOTS_PER_BACKEND: u32 = 100;

/// Small tables take more, or the backends that stay would exchange too many slots when one
/// goes. Measured with a hundredfold table: 3 % of the other slots for 10 backends, 1.7 % for
/// 100, 0.6 % for 1000. With this times the square root of the backends it is below 1 % for all.
const SLOTS_PER_ROOT: u32 = 4096;

/// From here on tables grow by this many backends, below by doubling.
const STEP: u32 = 1024;

/// No table is made for fewer backends than this, so that the first few come and go
/// without a change of size.
const LEAST: u32 = 16;

/// What a table is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// Slots are drawn by chance: only the shares count.
    Chance,
    /// Slots are found by hashing: what the other backends have should stay.
    Hash,
}

/// Number of slots for so many backends, a prime number, at most `limit`.
///
/// A table of another size is another table altogether. So the size goes by steps of the
/// number of backends: one of them going changes it only at a step. One backend needs no
/// table, whatever comes next.
pub fn size(backends: usize, usage: Use, limit: u32) -> u32 {
    let backends = u32::try_from(backends).unwrap_or(u32::MAX);
    if backends <= 1 {
        return backends.min(limit);
    }
    let stepped = if backends <= STEP {
        backends.next_power_of_two().max(LEAST)
    } else {
        backends.checked_next_multiple_of(STEP).unwrap_or(u32::MAX)
    };
    let least = match usage {
        Use::Chance => 0,
        Use::Hash => SLOTS_PER_ROOT.saturating_mul(stepped.isqrt()),
    };
    let wanted = stepped.saturating_mul(SLOTS_PER_BACKEND).max(least);
    if wanted < limit
        && let Some(prime) = (wanted..=limit).find(|number| is_prime(*number))
    {
        return prime;
    }
    (1..=limit).rev().find(|number| is_prime(*number)).unwrap_or(limit)
}

fn is_prime(number: u32) -> bool {
    number > 1 && (2..=number.isqrt()).all(|divisor| !number.is_multiple_of(divisor))
}

/// Which of `backends` stands in each of `size` slots; each comes with its weight. The
/// outcome depends on addresses and weights alone, not on their order.
///
/// Weights are honoured as the paper suggests: a backend has a turn in each round only if
/// it has the greatest weight, else in a part of the rounds. In the first one everybody has,
/// so that everybody has a slot if there are enough. A weight of zero counts as one.
pub fn table(backends: &[(SocketAddr, u16)], size: u32) -> Vec<u32> {
    let mut table = vec![EMPTY; size as usize];
    let mut groups = groups(backends, size);
    let greatest = groups.first().map_or(1, |group| group.weight);
    let mut left = size;
    while left > 0 && !groups.is_empty() {
        for group in &mut groups {
            group.credit += group.weight;
            if group.credit < greatest {
                continue;
            }
            group.credit -= greatest;
            for seeker in &mut group.seekers {
                if left == 0 {
                    break;
                }
                seeker.take_next(&mut table);
                left -= 1;
            }
        }
    }
    table
}

/// No backend has so great an index: there are fewer than slots.
const EMPTY: u32 = u32::MAX;

/// Backends of the same weight, which have their turns in the same rounds.
struct Group {
    weight: u32,
    /// Grows by the weight in each round; a turn costs the greatest weight.
    credit: u32,
    seekers: Vec<Seeker>,
}

/// Groups by falling weight, each in the order of addresses.
fn groups(backends: &[(SocketAddr, u16)], size: u32) -> Vec<Group> {
    let weight = |index: &u32| u32::from(backends[*index as usize].1.max(1));
    let mut order: Vec<_> = (0..backends.len() as u32).collect();
    order.sort_unstable_by_key(|index| (std::cmp::Reverse(weight(index)), backends[*index as usize].0));
    let greatest = order.first().map_or(1, weight);
    let group = |indices: &[u32]| {
        let weight = indices.first().map_or(1, weight);
        let seeker = |index: &u32| Seeker::new(backends[*index as usize].0, *index, size);
        Group { weight, credit: greatest - weight, seekers: indices.iter().map(seeker).collect() }
    };
    order.chunk_by(|a, b| weight(a) == weight(b)).map(group).collect()
}

/// A backend on its way through its own permutation of the slots.
struct Seeker {
    index: u32,
    position: u32,
    skip: u32,
    size: u32,
}

impl Seeker {
    fn new(addr: SocketAddr, index: u32, size: u32) -> Self {
        let (first, second) = hash(addr);
        let (slots, skips) = (u64::from(size.max(1)), u64::from(size.saturating_sub(1).max(1)));
        Self { index, position: (first % slots) as u32, skip: (second % skips) as u32 + 1, size }
    }

    /// Takes the first free slot of the permutation. There must be one: the size is prime,
    /// so every skip leads through all slots.
    fn take_next(&mut self, table: &mut [u32]) {
        while let Some(slot) = table.get_mut(self.position as usize) {
            let free = *slot == EMPTY;
            if free {
                *slot = self.index;
            }
            self.position += self.skip;
            if self.position >= self.size {
                self.position -= self.size;
            }
            if free {
                return;
            }
        }
    }
}

/// SipHash, because it is specified bit by bit: all nodes agree, whatever release of whatever
/// library they were built with. Its 128 bits are the two independent numbers that are needed.
fn hash(addr: SocketAddr) -> (u64, u64) {
    const SEED: (u64, u64) = (0x7368_756e_7420_6d61, 0x676c_6576_2074_6162);
    let mut hasher = SipHasher13::new_with_keys(SEED.0, SEED.1);
    match addr {
        SocketAddr::V4(addr) => hasher.write(&addr.ip().octets()),
        SocketAddr::V6(addr) => hasher.write(&addr.ip().octets()),
    }
    hasher.write(&addr.port().to_be_bytes());
    let hash = hasher.finish128();
    (hash.h1, hash.h2)
}

#[cfg(test)]
mod tests;
