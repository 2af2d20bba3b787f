use std::collections::HashSet;

use proptest::{prelude::*, sample::Index};

use super::*;

const LIMIT: u32 = 524_288;

fn backend(number: u32) -> SocketAddr {
    (std::net::Ipv4Addr::from(0x0a00_0000 + number), 8080).into()
}

fn equal(numbers: impl IntoIterator<Item = u32>) -> Vec<(SocketAddr, u16)> {
    numbers.into_iter().map(|number| (backend(number), 1)).collect()
}

fn addresses(backends: &[(SocketAddr, u16)], size: u32) -> Vec<SocketAddr> {
    table(backends, size).into_iter().map(|index| backends[index as usize].0).collect()
}

fn shares(backends: &[(SocketAddr, u16)], size: u32) -> Vec<u32> {
    let mut shares = vec![0; backends.len()];
    table(backends, size).into_iter().for_each(|index| shares[index as usize] += 1);
    shares
}

/// The part of the slots of those that stay which changes hands when `gone` goes.
fn disruption(backends: u32, gone: u32) -> f64 {
    let before = equal(0..backends);
    let after = equal((0..backends).filter(|number| *number != gone));
    let slots = size(before.len(), Use::Hash, LIMIT);
    assert_eq!(size(after.len(), Use::Hash, LIMIT), slots, "{backends}");
    let (before, after) = (addresses(&before, slots), addresses(&after, slots));
    let others = before.iter().zip(&after).filter(|(old, _)| **old != backend(gone));
    let (kept, moved): (Vec<_>, Vec<_>) = others.partition(|(old, new)| old == new);
    moved.len() as f64 / (kept.len() + moved.len()) as f64
}

#[test]
fn one_backend_less_moves_few_of_the_others() {
    for backends in [3, 4, 5, 6, 8, 10, 13, 16, 20, 30, 32, 60, 64, 100, 128, 250, 256, 500, 512, 1000, 1024]
    {
        let tried: Vec<_> =
            (0..backends.min(5)).map(|part| disruption(backends, part * backends / 5)).collect();
        let worst = tried.iter().copied().fold(0.0, f64::max);
        println!(
            "{backends} backends, {} slots: {:.2} % at worst",
            size(backends as usize, Use::Hash, LIMIT),
            worst * 100.0
        );
        assert!(worst <= 0.01, "{backends}: {tried:?}");
    }
}

#[test]
fn sizes_are_prime_bounded_and_large_enough() {
    for (backends, usage, limit, expected) in [
        (0, Use::Hash, LIMIT, 0),
        (1, Use::Hash, LIMIT, 1),
        (2, Use::Hash, LIMIT, 16_411),
        (16, Use::Hash, LIMIT, 16_411),
        (17, Use::Hash, LIMIT, 20_483),
        (1000, Use::Hash, LIMIT, 131_101),
        (5000, Use::Hash, LIMIT, 512_009),
        (2, Use::Chance, LIMIT, 1601),
        (1000, Use::Chance, LIMIT, 102_407),
        (5000, Use::Hash, 1000, 997),
        (5000, Use::Hash, 1, 1),
    ] {
        assert_eq!(size(backends, usage, limit), expected, "{backends} {usage:?} {limit}");
    }
    for backends in 2..6000 {
        let size = size(backends, Use::Hash, u32::MAX);
        assert!(size as usize >= 100 * backends && is_prime(size), "{backends}: {size}");
    }
}

#[test]
fn weights_are_proportions() {
    for weights in [&[1, 3][..], &[10, 20, 30, 40], &[1000, 1], &[7, 7, 7], &[1000, 999, 1, 1]] {
        let backends: Vec<_> =
            weights.iter().enumerate().map(|(i, weight)| (backend(i as u32), *weight)).collect();
        let slots = size(backends.len(), Use::Chance, LIMIT);
        let sum: u32 = weights.iter().copied().map(u32::from).sum();
        for (share, weight) in shares(&backends, slots).into_iter().zip(weights) {
            let ideal = f64::from(slots) * f64::from(*weight) / f64::from(sum);
            assert!((f64::from(share) - ideal).abs() <= weights.len() as f64, "{weights:?}: {share} {ideal}");
            assert!(share > 0);
        }
    }
}

/// Other releases must make the same tables, or nodes would disagree during an upgrade.
#[test]
fn tables_never_change() {
    let v6: SocketAddr = "[fd00::1]:53".parse().expect("an address");
    assert_eq!(table(&equal(1..5), 13), KNOWN_V4);
    assert_eq!(table(&[(v6, 1), (backend(1), 3)], 11), KNOWN_MIXED);
}

const KNOWN_V4: [u32; 13] = [3, 2, 0, 1, 3, 0, 2, 3, 2, 1, 1, 0, 0];
const KNOWN_MIXED: [u32; 11] = [1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 0];

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// The paper's bound: with equal weights no backend has two slots more than another.
    #[test]
    fn slots_are_shared_evenly(numbers in prop::collection::hash_set(any::<u32>(), 1..300)) {
        let backends = equal(numbers.iter().map(|number| number >> 8));
        let unique: HashSet<_> = backends.iter().map(|(addr, _)| *addr).collect();
        prop_assume!(unique.len() == backends.len());
        let shares = shares(&backends, size(backends.len(), Use::Hash, LIMIT));
        let (least, most) = (shares.iter().min(), shares.iter().max());
        prop_assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{shares:?}");
    }

    #[test]
    fn the_order_of_arrival_says_nothing(
        weights in prop::collection::vec(1u16..5, 1..60),
        picks in prop::collection::vec(any::<Index>(), 60),
    ) {
        let sorted: Vec<_> = weights.iter().enumerate().map(|(i, w)| (backend(i as u32), *w)).collect();
        let mut left = sorted.clone();
        let shuffled: Vec<_> = picks.iter().take(sorted.len()).map(|pick| left.swap_remove(pick.index(left.len()))).collect();
        let slots = size(sorted.len(), Use::Chance, LIMIT);
        prop_assert_eq!(addresses(&sorted, slots), addresses(&shuffled, slots));
    }
}
