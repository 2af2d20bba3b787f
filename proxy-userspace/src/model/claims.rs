//! Who has an address when several services say that it is theirs.
//!
//! The oldest service wins, then the first by name, so that the outcome depends neither
//! on the order of events nor on restarts. Losers stand by and take over.

use std::collections::{BTreeSet, HashMap};

use super::{Claim, ObjectName, Service};

/// Two services want one address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("services {winner} and {loser} both claim {claim}; {winner} has it")]
pub struct Conflict {
    /// What both want.
    pub claim: Claim,
    /// Who has it. The same as `loser` when a service claims it twice by itself.
    pub winner: ObjectName,
    /// Who waits for it.
    pub loser: ObjectName,
}

/// Services in the order in which they win.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claimant {
    created: i64,
    name: ObjectName,
}

impl Claimant {
    pub(super) fn of(service: &Service) -> Self {
        Self { created: service.created, name: service.name.clone() }
    }
}

/// Every claim and who has it.
#[derive(Debug, Default)]
pub(super) struct Claims {
    holders: HashMap<Claim, Claimant>,
    /// Those who wait, for the few claims that have any.
    waiting: HashMap<Claim, BTreeSet<Claimant>>,
}

impl Claims {
    /// Adds a claim. A conflict names the other side, whose rows have to be planned anew
    /// if it is the loser.
    pub(super) fn add(&mut self, claim: Claim, claimant: Claimant) -> Option<Conflict> {
        let Some(holder) = self.holders.get_mut(&claim) else {
            self.holders.insert(claim, claimant);
            return None;
        };
        if *holder == claimant {
            return None;
        }
        let loser = if claimant < *holder { std::mem::replace(holder, claimant) } else { claimant };
        let conflict = Conflict { claim, winner: holder.name.clone(), loser: loser.name.clone() };
        self.waiting.entry(claim).or_default().insert(loser);
        Some(conflict)
    }

    /// Takes a claim back. Names the service that has the address from now on, if the
    /// holder has changed.
    pub(super) fn remove(&mut self, claim: Claim, claimant: &Claimant) -> Option<ObjectName> {
        let mut waiting = self.waiting.remove(&claim).unwrap_or_default();
        let heir = if self.holders.get(&claim) == Some(claimant) {
            let heir = waiting.pop_first();
            match heir.clone() {
                Some(heir) => self.holders.insert(claim, heir),
                None => self.holders.remove(&claim),
            };
            heir
        } else {
            waiting.remove(claimant);
            None
        };
        if !waiting.is_empty() {
            self.waiting.insert(claim, waiting);
        }
        heir.map(|heir| heir.name)
    }

    /// True when `name` has what it claims.
    pub(super) fn holds(&self, claim: &Claim, name: &ObjectName) -> bool {
        self.holders.get(claim).is_some_and(|holder| holder.name == *name)
    }

    /// Everything that is claimed by more than one service.
    pub(super) fn conflicts(&self) -> impl Iterator<Item = Conflict> {
        self.waiting.iter().flat_map(|(claim, losers)| {
            let winner = self.holders.get(claim).map(|holder| holder.name.clone());
            losers.iter().filter_map(move |loser| {
                Some(Conflict { claim: *claim, winner: winner.clone()?, loser: loser.name.clone() })
            })
        })
    }
}
