//! How many rows there will be, without making them: maps are given their size before the
//! first is written.

use std::{
    collections::{HashSet, hash_map::RandomState},
    hash::BuildHasher,
};

use crate::model::{Family, Service, State};

/// Rows of maps; of frontends, backends and slots in each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the maps")]
pub struct Needs {
    pub services: usize,
    pub frontends: [usize; 2],
    pub backends: [usize; 2],
    /// Without lookup tables: how large they become depends on the room there is.
    pub slots: [usize; 2],
}

/// What the services of a state need.
pub fn needs(state: &State) -> Needs {
    let mut needs = Needs::default();
    for service in state.services().filter(|service| service.served().is_ok()) {
        needs.services += service.ports.len();
        for face in service.faces() {
            needs.frontends[face.claim.family as usize] += 1;
        }
    }
    for family in Family::ALL {
        let (backends, slots) = endpoints(state, family);
        (needs.backends[family as usize], needs.slots[family as usize]) = (backends, slots);
    }
    needs
}

/// Backends, each once, and slots of one family.
fn endpoints(state: &State, family: Family) -> (usize, usize) {
    let hasher = RandomState::new();
    // Hashes take the least memory; two of them being equal makes a difference of one row.
    let mut backends = HashSet::new();
    let mut slots = 0;
    for service in state.services().filter(|service| service.cluster_ip(family).is_some()) {
        for port in &service.ports {
            for candidate in state.candidates(&service.name, port, family) {
                backends.insert(hasher.hash_one((candidate.addr, port.protocol)));
                slots += slots_of(service, candidate.local);
            }
        }
    }
    (backends.len(), slots)
}

fn slots_of(service: &Service, local: bool) -> usize {
    let scopes = service.scopes();
    usize::from(scopes.cluster) + usize::from(scopes.local && local)
}
