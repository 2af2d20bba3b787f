//! What the kernel counts of the programs of a node's agent, while it is told to.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::OwnedFd,
};

use anyhow::{Context as _, Result};
use aya::{
    programs::{
        links::{FdLink, LinkType, PinnedLink},
        loaded_programs,
    },
    sys::{Stats, enable_stats},
};
use serde::{Deserialize, Serialize};

use crate::agent::Agent;

/// How often a program ran, and how long in all. Programs that it goes on to by tail calls are part of it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Runs {
    /// How often.
    pub count: u64,
    /// Nanoseconds of all runs together.
    pub nanoseconds: u64,
}

/// Counts from its start to its end.
pub(super) struct Counting {
    ids: BTreeSet<u32>,
    before: BTreeMap<String, Runs>,
    // The kernel counts while this is open.
    _on: OwnedFd,
}

impl Counting {
    /// Begins with all programs that the agent has attached to devices and cgroups.
    pub(super) fn start(agent: &Agent) -> Result<Self> {
        let on = enable_stats(Stats::RunTime).context("have the kernel count what programs take")?;
        let ids = attached(agent)?;
        Ok(Self { before: runs(&ids)?, ids, _on: on })
    }

    /// By name, those that ran.
    pub(super) fn end(self) -> Result<BTreeMap<String, Runs>> {
        Ok(since(&self.before, runs(&self.ids)?))
    }
}

fn since(before: &BTreeMap<String, Runs>, mut after: BTreeMap<String, Runs>) -> BTreeMap<String, Runs> {
    for (name, runs) in &mut after {
        let Runs { count, nanoseconds } = before.get(name).copied().unwrap_or_default();
        *runs = Runs { count: runs.count - count, nanoseconds: runs.nanoseconds - nanoseconds };
    }
    after.retain(|_, runs| runs.count > 0);
    after
}

/// The kernel's numbers of programs behind the agent's links, but for those that it runs itself over maps.
fn attached(agent: &Agent) -> Result<BTreeSet<u32>> {
    let folder = agent.pins().join("current/links");
    let pins = fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
    let mut ids = BTreeSet::new();
    for pin in pins {
        let path = pin?.path();
        let read = || -> Result<_> {
            let info = FdLink::from(PinnedLink::from_pin(&path)?).info()?;
            Ok((info.program_id(), info.link_type()?))
        };
        let (id, kind) = read().with_context(|| format!("read the link {}", path.display()))?;
        if kind != LinkType::Iter {
            ids.insert(id);
        }
    }
    Ok(ids)
}

fn runs(ids: &BTreeSet<u32>) -> Result<BTreeMap<String, Runs>> {
    let mut all: BTreeMap<String, Runs> = BTreeMap::new();
    for program in loaded_programs() {
        let program = program.context("list programs")?;
        if ids.contains(&program.id()) {
            let runs = all.entry(program.name_as_str().unwrap_or_default().to_owned()).or_default();
            runs.count += program.run_count();
            runs.nanoseconds += program.run_time().as_nanos() as u64;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runs_meanwhile_count() {
        let counts = |all: &[(&str, u64, u64)]| -> BTreeMap<String, Runs> {
            all.iter()
                .map(|(name, count, ns)| ((*name).to_owned(), Runs { count: *count, nanoseconds: *ns }))
                .collect()
        };
        let before = counts(&[("shunt_in", 10, 900), ("shunt_out", 5, 300)]);
        let after = counts(&[("shunt_in", 30, 3_900), ("shunt_out", 5, 300), ("sock_connect4", 1, 700)]);
        assert_eq!(since(&before, after), counts(&[("shunt_in", 20, 3_000), ("sock_connect4", 1, 700)]));
    }
}
