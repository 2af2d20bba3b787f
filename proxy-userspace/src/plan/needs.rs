//! How many rows there will be: maps are given their size before the first is written.

use std::{
    collections::{HashSet, hash_map::RandomState},
    hash::BuildHasher,
};

use super::{
    Scope, Spread, build,
    maglev::{self, Use},
};
use crate::model::{Algorithm, Candidate, Config, Family, Mode, Service, State, Weights};

/// Rows of maps; of frontends, backends and slots in each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the maps")]
pub struct Needs {
    pub services: usize,
    pub frontends: [usize; 2],
    pub backends: [usize; 2],
    pub slots: [Slots; 2],
    pub source_ranges: [usize; 2],
    pub largest: Largest,
}

/// The most rows that a single Service needs in one map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the maps")]
pub struct Largest {
    pub services: usize,
    pub frontends: usize,
    pub backends: usize,
    pub source_ranges: usize,
}

/// Slots of a family, where lookup tables have the size they should have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// Of all scopes.
    pub all: usize,
    /// Of the largest table; 0 if there is none.
    pub largest_table: usize,
}

impl Slots {
    fn add(&mut self, scope: &Scope) {
        let backends = scope.backends.len();
        let Spread::Table(usage) = scope.spread else { return self.all += backends };
        let table = table(backends, usage);
        self.all += table;
        self.largest_table = self.largest_table.max(table);
    }
}

/// Slots of a table that has all the room it wants.
fn table(backends: usize, usage: Use) -> usize {
    maglev::size(backends, usage, u32::MAX) as usize
}

/// What the services of a state need.
pub fn needs(state: &State, config: &Config) -> Needs {
    let mut needs = Needs::default();
    for service in state.services().filter(|service| service.served().is_ok()) {
        needs.services += service.ports.len();
        let mut frontends = [0; 2];
        for face in service.faces() {
            frontends[face.claim.family as usize] += 1;
        }
        let largest = &mut needs.largest;
        largest.services = largest.services.max(service.ports.len());
        for family in Family::ALL {
            let ranges = service.source_ranges(family).len() * service.ports.len();
            needs.frontends[family as usize] += frontends[family as usize];
            needs.source_ranges[family as usize] += ranges;
            largest.frontends = largest.frontends.max(frontends[family as usize]);
            largest.source_ranges = largest.source_ranges.max(ranges);
        }
    }
    for family in Family::ALL {
        let (backends, slots) = endpoints(state, config, family, &mut needs.largest.backends);
        (needs.backends[family as usize], needs.slots[family as usize]) = (backends, slots);
    }
    needs
}

/// Backends, each once, and slots of one family; raises `largest` to the most backends of a single Service.
fn endpoints(state: &State, config: &Config, family: Family, largest: &mut usize) -> (usize, Slots) {
    let hasher = RandomState::new();
    // Hashes take the least memory; two of them being equal makes a difference of one row.
    let mut backends = HashSet::new();
    let mut slots = Slots::default();
    for service in state.services().filter(|service| service.cluster_ip(family).is_some()) {
        let (mut even, mut weighted, mut own) = (0, false, 0);
        for port in &service.ports {
            for candidate in state.candidates(&service.name, port, family) {
                backends.insert(hasher.hash_one((candidate.addr, port.protocol)));
                own += 1;
                even += slots_of(service, &candidate);
                weighted |= candidate.weight != Weights::DEFAULT;
            }
        }
        *largest = own.max(*largest);
        if weighted || may_hash(service, config) {
            add_planned(state, config, service, family, &mut slots);
        } else {
            slots.all += even;
        }
    }
    (backends.len(), slots)
}

fn slots_of(service: &Service, candidate: &Candidate<'_>) -> usize {
    let scopes = service.scopes();
    usize::from(scopes.cluster) + usize::from(scopes.local && candidate.local)
}

/// Whether a face of the service may find backends by hashing, which takes a table.
fn may_hash(service: &Service, config: &Config) -> bool {
    let Config { load_balancer, .. } = config;
    let own = &service.balancing;
    let outside = own.algorithm.unwrap_or(load_balancer.algorithm) == Algorithm::Maglev
        || own.mode.unwrap_or(load_balancer.mode) != Mode::Snat;
    own.algorithm == Some(Algorithm::Maglev) || outside && service.is_external()
}

/// How large the tables of a service are, only its plan says.
fn add_planned(state: &State, config: &Config, service: &Service, family: Family, slots: &mut Slots) {
    for plan in build(state, &service.name, config).iter().filter(|plan| plan.family == family) {
        slots.add(&plan.cluster);
        slots.add(&plan.local);
        slots.all += plan.returning.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_count_at_their_normal_size() {
        let backend = |last| super::super::BackendRow {
            addr: ([10, 0, 0, last], 80).into(),
            local: false,
            weight: Weights::DEFAULT,
        };
        let scope = |count: u8, spread| Scope { backends: (1..=count).map(backend).collect(), spread };
        let mut slots = Slots::default();
        slots.add(&scope(7, Spread::Even));
        assert_eq!(slots, Slots { all: 7, largest_table: 0 });
        slots.add(&scope(3, Spread::Table(Use::Chance)));
        slots.add(&scope(3, Spread::Table(Use::Hash)));
        slots.add(&scope(0, Spread::Table(Use::Hash)));
        assert_eq!(slots, Slots { all: 7 + 1_601 + 16_411, largest_table: 16_411 });
    }
}
