//! What is told of a contender beside the requests of a minute.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{
    connections,
    programs::{Counting, Runs},
    results::Requests,
};
use crate::bench::{field::Field, proc};

/// How long requests go on while the kernel counts what programs take.
const COUNTED: f64 = 1.0;

/// A contender at the end of a minute.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Reading {
    /// Entries of the first node's connection table.
    pub connections: Option<u64>,
    /// CPUs that the proxy's process has had since the reading before.
    pub cpus: Option<f64>,
    /// Requests while the kernel counted.
    pub requests: f64,
    /// What programs have taken for them, by name.
    pub programs: BTreeMap<String, Runs>,
}

impl Reading {
    /// What all programs together have taken; none if none ran.
    pub fn sum(&self) -> Option<Runs> {
        let add =
            |a: Runs, b: Runs| Runs { count: a.count + b.count, nanoseconds: a.nanoseconds + b.nanoseconds };
        self.programs.values().copied().reduce(add)
    }
}

/// Takes readings of a contender.
pub(super) struct Observer {
    used: Option<Duration>,
    since: Instant,
}

impl Observer {
    pub(super) fn of(field: &Field) -> Result<Self> {
        Ok(Self { used: used(field)?, since: Instant::now() })
    }

    pub(super) fn read(&mut self, field: &mut Field, requests: Requests) -> Result<Reading> {
        let now = Self::of(field)?;
        let seconds = (now.since - self.since).as_secs_f64();
        let cpus = self.used.zip(now.used).map(|(before, now)| (now - before).as_secs_f64() / seconds);
        *self = now;
        let connections = connections::connections(field)?.map(|connections| connections.count);
        let mut reading = Reading { connections, cpus, ..Reading::default() };
        if field.contender().is_shunt() {
            let counting = Counting::start(&field.cluster().nodes[0].agent)?;
            let driven = field.drive(requests.path, requests.workload, COUNTED, None)?;
            (reading.requests, reading.programs) = (driven.units, counting.end()?);
        }
        Ok(reading)
    }
}

fn used(field: &Field) -> Result<Option<Duration>> {
    let of = |process| proc::used(process).context("processor time of the proxy");
    field.proxy()?.map(of).transpose()
}
