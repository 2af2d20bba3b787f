//! From single measurements to medians.

use std::collections::{BTreeMap, BTreeSet};

use super::results::Cell;
use crate::bench::{
    contender::Contender,
    ends::{Driven, Workload},
    statistics::{median, percentile, sorted},
    target::Path,
};

type Key = (Path, Workload, Contender);

/// Everything that was measured, by what and by round.
#[derive(Debug, Default)]
pub(super) struct Samples(BTreeMap<Key, BTreeMap<usize, Driven>>);

impl Samples {
    pub(super) fn add(&mut self, round: usize, key: Key, driven: Driven) {
        self.0.entry(key).or_default().insert(round, driven);
    }

    /// A cell for each contender, path and workload.
    pub(super) fn cells(&self) -> Vec<Cell> {
        self.0.iter().map(|(key, rounds)| self.cell(*key, rounds)).collect()
    }

    fn cell(&self, (path, workload, contender): Key, rounds: &BTreeMap<usize, Driven>) -> Cell {
        let ratios = |to: &[Contender]| sorted(self.ratios((path, workload, contender), to));
        let to_direct = ratios(&[Contender::Direct]);
        let kube_proxies = [Contender::Iptables, Contender::IptablesLegacy, Contender::Nftables];
        let to_kube_proxy = ratios(&kube_proxies);
        let good = || rounds.values().filter(|driven| cost(driven).is_some());
        let micros = median(good().filter_map(cost));
        Cell {
            path,
            workload,
            contender,
            micros,
            rate: if micros > 0.0 { 1e6 / micros } else { 0.0 },
            p50_micros: median(good().map(|driven| driven.p50 / 1e3)),
            p99_micros: median(good().map(|driven| driven.p99 / 1e3)),
            to_direct: percentile(&to_direct, 0.5),
            low: percentile(&to_direct, 0.25),
            high: percentile(&to_direct, 0.75),
            to_kube_proxy: (!to_kube_proxy.is_empty()).then(|| percentile(&to_kube_proxy, 0.5)),
            failed: rounds.values().map(|driven| driven.failed).sum(),
        }
    }

    /// Of each round that has both: the cost over the least cost among `others`.
    fn ratios(&self, key: Key, others: &[Contender]) -> Vec<f64> {
        let (path, workload, _) = key;
        let others: BTreeSet<Key> = others.iter().map(|other| (path, workload, *other)).collect();
        let round_ratio = |(round, driven): (&usize, &Driven)| {
            let costs = others.iter().filter_map(|other| cost(self.0.get(other)?.get(round)?));
            Some(cost(driven)? / costs.reduce(f64::min)?)
        };
        self.0.get(&key).into_iter().flatten().filter_map(round_ratio).collect()
    }
}

/// Microseconds for each request or MiB. A wait for an answer that did not come is no cost.
fn cost(driven: &Driven) -> Option<f64> {
    (driven.failed == 0 && driven.units > 0.0).then(|| driven.nanoseconds as f64 / 1e3 / driven.units)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driven(units: f64, failed: u64) -> Driven {
        Driven { units, failed, nanoseconds: 1_000_000, p50: 1.0, p99: 2.0 }
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let key = |contender| (Path::PodLocal, Workload::TcpConnect, contender);
        let mut samples = Samples::default();
        // The machine is half as fast in the second round; in the third an answer was lost.
        for (round, direct, shunt, lost) in [(0, 100.0, 80.0, 0), (1, 50.0, 40.0, 0), (2, 100.0, 10.0, 1)] {
            samples.add(round, key(Contender::Direct), driven(direct, 0));
            samples.add(round, key(Contender::Iptables), driven(direct / 2.0, 0));
            samples.add(round, key(Contender::ShuntAll), driven(shunt, lost));
        }
        let cells = samples.cells();
        let cell = cells.iter().find(|cell| cell.contender == Contender::ShuntAll).expect("a cell");
        assert_eq!((cell.to_direct, cell.low, cell.high), (1.25, 1.25, 1.25));
        assert_eq!((cell.to_kube_proxy, cell.failed), (Some(0.625), 1));
        assert_eq!(cell.micros, (12.5 + 25.0) / 2.0);
    }
}
