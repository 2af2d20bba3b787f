//! What was measured, as it is kept.

use super::contender::Contender;
use crate::bench::statistics::percentile;
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path};

/// Everything that was measured, by number of services and contender.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// In this order; no two are of the same number and contender.
    pub rows: Vec<Row>,
}

impl Results {
    /// Reads what is there; nothing if there is no file.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not what this version writes", path.display()))
    }

    /// Puts a row in the place of the one that was measured before.
    pub fn merge(&mut self, row: Row) {
        self.rows.retain(|old| (old.services, old.contender) != (row.services, row.contender));
        self.rows.push(row);
        self.rows.sort_by_key(|row| (row.services, row.contender));
    }

    /// Writes it, so that an interrupted run leaves what was there.
    pub fn write(&self, path: &Path) -> Result<()> {
        let draft = path.with_extension("draft");
        fs::write(&draft, serde_json::to_string_pretty(self)? + "\n")?;
        fs::rename(&draft, path).with_context(|| format!("write {}", path.display()))
    }
}

/// What one contender did with so many services. What is absent was not measured, and `notes`
/// says why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// How many fillers there were.
    pub services: u32,
    /// Who.
    pub contender: Contender,
    /// How fast the API server was just before.
    pub delivery: Option<Delivery>,
    /// The first start on a node.
    pub cold_start: Option<ColdStart>,
    /// Requests while nothing changes.
    pub idle: Option<Stretch>,
    /// Services that were created.
    pub create: Option<Samples>,
    /// Endpoints that were changed.
    pub change: Option<Samples>,
    /// Requests while endpoints of fillers change.
    pub churn: Option<Churn>,
    /// A start on a node where it ran before.
    pub restart: Option<Restart>,
    /// What is to be known beside the numbers.
    pub notes: Vec<String>,
}

impl Row {
    /// Nothing measured yet.
    pub fn new(services: u32, contender: Contender) -> Self {
        Self {
            services,
            contender,
            delivery: None,
            cold_start: None,
            idle: None,
            create: None,
            change: None,
            churn: None,
            restart: None,
            notes: Vec::new(),
        }
    }
}

/// Services and slices, delivered to a client that only counts bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// Until both lists were there.
    pub seconds: f64,
    /// In the encoding that the contender asks for.
    pub mib: f64,
}

/// From the start of the process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColdStart {
    /// Until the target answered.
    pub served_seconds: f64,
    /// Until it said that everything is written, if it says so.
    pub in_sync_seconds: Option<f64>,
    /// Rows that it wrote until then, if it says so.
    pub rows_written: Option<u64>,
    /// Used until then, with children.
    pub cpu_seconds: f64,
    /// The most it had until then.
    pub peak_rss_mib: f64,
    /// The part of it that is rows of maps.
    pub mapped_mib: f64,
    /// The most that its children had at a time.
    pub children_rss_mib: f64,
    /// What the kernel holds for its maps.
    pub maps_mib: Option<f64>,
}

/// Requests to the target, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// How long it lasted.
    pub seconds: f64,
    /// What the proxy used meanwhile, in percent of one core.
    pub cpu_percent: f64,
    /// Latency that half of the requests stayed below.
    pub p50_us: f64,
    /// Latency that all but one in a hundred stayed below.
    pub p99_us: f64,
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were not.
    pub lost: u64,
}

/// The same while endpoints change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Churn {
    /// So many as were really written.
    pub changes_per_second: f64,
    /// The requests meanwhile.
    pub stretch: Stretch,
}

/// Changes, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// How many.
    pub taken: u32,
    /// From the moment that the last write was sent.
    pub since_sent: Distribution,
    /// From the moment that the API server had acknowledged it.
    pub since_acknowledged: Distribution,
}

/// Milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Half of them took no longer.
    pub p50_ms: f64,
    /// All but one in a hundred took no longer.
    pub p99_ms: f64,
    /// None took longer.
    pub max_ms: f64,
}

impl Distribution {
    /// Of at least one value; of none there is nothing to say.
    pub fn of(mut milliseconds: Vec<f64>) -> Option<Self> {
        milliseconds.sort_by(f64::total_cmp);
        let max_ms = *milliseconds.last()?;
        let [p50_ms, p99_ms] = [0.5, 0.99].map(|share| percentile(&milliseconds, share));
        Some(Self { p50_ms, p99_ms, max_ms })
    }
}

/// Stopped and started again, twice: once without and once with a change in between.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Restart {
    /// Until it said that everything is written, if it says so.
    pub in_sync_seconds: Option<f64>,
    /// Rows that it wrote until then, if it says so.
    pub rows_written: Option<u64>,
    /// From its start until a change that was made while it was away was in force.
    pub follows_seconds: Option<f64>,
    /// Requests to the target meanwhile that were answered.
    pub answered: u64,
    /// Requests that were not.
    pub lost: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_takes_the_place_of_the_one_before() {
        let mut results = Results::default();
        for (services, contender) in
            [(1000, Contender::Shunt), (10, Contender::Shunt), (10, Contender::KubeProxyIptables)]
        {
            results.merge(Row::new(services, contender));
        }
        let mut again = Row::new(10, Contender::Shunt);
        again.notes.push("again".into());
        results.merge(again);
        let found: Vec<_> =
            results.rows.iter().map(|row| (row.services, row.contender, row.notes.len())).collect();
        assert_eq!(
            found,
            [(10, Contender::KubeProxyIptables, 0), (10, Contender::Shunt, 1), (1000, Contender::Shunt, 0)]
        );
    }

    #[test]
    fn a_distribution_has_an_order() {
        assert_eq!(Distribution::of(Vec::new()), None);
        let values = (1..=100).rev().map(f64::from).collect();
        let of = Distribution::of(values).map(|d| (d.p50_ms < d.p99_ms, d.p99_ms <= d.max_ms, d.max_ms));
        assert_eq!(of, Some((true, true, 100.0)));
    }
}
