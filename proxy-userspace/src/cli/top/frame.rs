//! What there is to be drawn at one moment: the rows of every tab, made of two readings of the maps.

use std::collections::{BTreeMap, HashMap};

use super::{
    super::{
        list::column::{Column, Shown, Value},
        stats::view::{FaceView, Rates},
        usage::Counts,
    },
    grid::Grid,
    reading::{Fill, Reading, Refused},
    state::Tab,
};

/// The rows of every tab.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    /// What is looked at.
    pub title: String,
    /// All together, or what is wrong.
    pub summary: String,
    /// Whether something is wrong.
    pub tone: Tone,
    services: Vec<Busy>,
    backends: HashMap<String, Vec<Busy>>,
    refusals: Vec<Refusal>,
    fills: Vec<Fill>,
}

/// Whether all is well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    /// It is.
    #[default]
    Calm,
    /// What is shown is old.
    Alarm,
}

/// A service or a backend, and what goes by it.
#[derive(Clone, Debug)]
struct Busy {
    name: String,
    note: String,
    total: Counts,
    rates: Rates,
}

/// A reason, for one service or for all.
#[derive(Clone, Debug)]
struct Refusal {
    refused: Refused,
    per_second: f64,
}

const SERVICES: &[Column<Busy>] = &busy("SERVICE", "PROTO");
const BACKENDS: &[Column<Busy>] = &busy("BACKEND", "WHERE");

/// The columns of what goes by something; the first two say what it is.
const fn busy(name: &'static str, note: &'static str) -> [Column<Busy>; 9] {
    [
        Column { name, shown: Shown::Always, value: |l| l.name.as_str().into() },
        Column { name: note, shown: Shown::Always, value: |l| l.note.as_str().into() },
        CPS,
        INPPS,
        OUTPPS,
        INBPS,
        OUTBPS,
        ACTIVE,
        OPENED,
    ]
}

const CPS: Column<Busy> =
    Column { name: "CPS", shown: Shown::Always, value: |l| rate(l.rates.connections_per_second) };
const INPPS: Column<Busy> =
    Column { name: "INPPS", shown: Shown::Always, value: |l| rate(l.rates.in_packets_per_second) };
const OUTPPS: Column<Busy> =
    Column { name: "OUTPPS", shown: Shown::Always, value: |l| rate(l.rates.out_packets_per_second) };
const INBPS: Column<Busy> =
    Column { name: "INBPS", shown: Shown::Always, value: |l| rate(l.rates.in_bytes_per_second) };
const OUTBPS: Column<Busy> =
    Column { name: "OUTBPS", shown: Shown::Always, value: |l| rate(l.rates.out_bytes_per_second) };
const ACTIVE: Column<Busy> =
    Column { name: "ACTIVE", shown: Shown::Always, value: |l| Value::Rounded(l.total.connections) };
const OPENED: Column<Busy> =
    Column { name: "OPENED", shown: Shown::Always, value: |l| Value::Rounded(l.total.opened) };

const REFUSALS: &[Column<Refusal>] = &[
    Column { name: "REASON", shown: Shown::Always, value: |l| l.refused.reason.into() },
    Column {
        name: "SERVICE",
        shown: Shown::Always,
        value: |l| l.refused.service.as_deref().unwrap_or("*").into(),
    },
    Column { name: "PER-SECOND", shown: Shown::Always, value: |l| rate(l.per_second) },
    Column { name: "COUNT", shown: Shown::Always, value: |l| Value::Rounded(l.refused.count) },
    Column { name: "MEANING", shown: Shown::Always, value: |l| l.refused.meaning.into() },
];

const FILLS: &[Column<Fill>] = &[
    Column { name: "MAP", shown: Shown::Always, value: |l| l.map.into() },
    Column { name: "FAMILY", shown: Shown::Always, value: |l| l.family.into() },
    Column { name: "ROWS", shown: Shown::Always, value: |l| Value::Number(l.rows) },
    Column { name: "CAPACITY", shown: Shown::Always, value: |l| Value::Number(l.size.capacity.into()) },
    Column { name: "MEMORY", shown: Shown::Always, value: |l| Value::Rounded(l.size.memory) },
    Column { name: "PERCENT", shown: Shown::Always, value: |l| Value::Tenths(l.tenths_of_percent()) },
    Column { name: "FULL", shown: Shown::Always, value: |l| Value::text(bar(l.tenths_of_percent())) },
];

/// A rate with one decimal while it is small: a whole number would hide that there is something.
fn rate(rate: f64) -> Value {
    match (rate * 10.0).round() as u64 {
        0 => Value::Number(0),
        tenths if tenths < 100 => Value::Tenths(tenths),
        tenths => Value::Rounded(tenths / 10),
    }
}

/// Characters of a full bar.
const BAR: u64 = 20;

fn bar(tenths_of_percent: u64) -> String {
    let full = (tenths_of_percent.min(1000) * BAR).div_ceil(1000);
    (0..BAR).map(|i| if i < full { '█' } else { '·' }).collect()
}

impl Frame {
    /// What came to `now` since `before`.
    pub(super) fn of(now: &Reading, before: &Reading) -> Self {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        let came = now.sample.since(&before.sample).faces(&now.tables);
        let total = now.sample.faces(&now.tables);
        let mut frame = Self { fills: now.fills.clone(), ..Self::default() };
        frame.add_services(&total, &came, seconds);
        frame.refusals = refusals(now, before, seconds);
        frame.summary = frame.all_together();
        frame
    }

    fn add_services(&mut self, total: &[FaceView], came: &[FaceView], seconds: f64) {
        let mut services: BTreeMap<(&str, &str), (Counts, Counts)> = BTreeMap::new();
        let mut backends: BTreeMap<(&str, String, bool), (Counts, Counts)> = BTreeMap::new();
        for (faces, is_total) in [(total, true), (came, false)] {
            let add = |sum: &mut (Counts, Counts), counts: Counts| {
                *(if is_total { &mut sum.0 } else { &mut sum.1 }) += counts;
            };
            for face in faces {
                add(services.entry((&face.service, face.protocol)).or_default(), face.counts);
                for backend in &face.backends {
                    let key = (face.service.as_str(), backend.address.to_string(), backend.local);
                    add(backends.entry(key).or_default(), backend.counts);
                }
            }
        }
        let busy = |name: &str, note: &str, (total, came): (Counts, Counts)| Busy {
            name: name.to_owned(),
            note: note.to_owned(),
            total,
            rates: Rates::of(&came, seconds),
        };
        self.services =
            services.into_iter().map(|((name, protocol), counts)| busy(name, protocol, counts)).collect();
        for ((service, address, local), counts) in backends {
            let place = if local { "this node" } else { "elsewhere" };
            self.backends.entry(service.to_owned()).or_default().push(busy(&address, place, counts));
        }
    }

    fn all_together(&self) -> String {
        let sum = |of: fn(&Rates) -> f64| -> f64 { self.services.iter().map(|line| of(&line.rates)).sum() };
        let active: u64 = self.services.iter().map(|line| line.total.connections).sum();
        let drops: f64 = self
            .refusals
            .iter()
            .filter(|line| line.refused.service.is_none())
            .map(|line| line.per_second)
            .sum();
        format!(
            "{} services  {active} open connections  per second: {} connections, {} packets in, {} out, {} bytes in, \
             {} out, {} refused",
            self.services.len(),
            rate(sum(|r| r.connections_per_second)),
            rate(sum(|r| r.in_packets_per_second)),
            rate(sum(|r| r.out_packets_per_second)),
            rate(sum(|r| r.in_bytes_per_second)),
            rate(sum(|r| r.out_bytes_per_second)),
            rate(drops),
        )
    }

    /// The rows of a tab.
    pub(super) fn grid(&self, tab: &Tab) -> Grid {
        match tab {
            Tab::Services => Grid::of(&self.services, SERVICES),
            Tab::Backends(service) => {
                Grid::of(self.backends.get(service).map_or(&[][..], Vec::as_slice), BACKENDS)
            }
            Tab::Drops => Grid::of(&self.refusals, REFUSALS),
            Tab::Maps => Grid::of(&self.fills, FILLS),
        }
    }

    /// The column that a tab is sorted by unless somebody wants another.
    pub(super) fn own_order(tab: &Tab) -> usize {
        let name = match tab {
            Tab::Services | Tab::Backends(_) => "CPS",
            Tab::Drops => "COUNT",
            Tab::Maps => "PERCENT",
        };
        Self::names(tab).iter().position(|column| *column == name).unwrap_or(0)
    }

    /// The names of the columns of a tab.
    pub(super) fn names(tab: &Tab) -> Vec<&'static str> {
        Self::default().grid(tab).header
    }
}

/// By reason, and by service and reason; what never was is left out.
fn refusals(now: &Reading, before: &Reading, seconds: f64) -> Vec<Refusal> {
    let earlier: HashMap<_, u64> =
        before.refused.iter().map(|refused| ((refused.reason, &refused.service), refused.count)).collect();
    let line = |refused: &Refused| {
        let before = earlier.get(&(refused.reason, &refused.service)).copied().unwrap_or(0);
        let came = refused.count.saturating_sub(before);
        let per_second = if seconds > 0.0 { came as f64 / seconds } else { 0.0 };
        Refusal { refused: refused.clone(), per_second }
    };
    now.refused.iter().filter(|refused| refused.count > 0).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rates_show_and_bars_tell_the_level() {
        let shown = [0.0, 0.04, 0.1, 9.94, 9.96, 123_456.0].map(|r| rate(r).to_string());
        assert_eq!(shown, ["0", "0", "0.1", "9.9", "10", "123K"]);
        assert_eq!(bar(0), "·".repeat(20));
        assert_eq!(bar(1).matches('█').count(), 1, "not empty");
        assert_eq!(bar(1000), "█".repeat(20));
    }

    #[test]
    fn every_tab_is_sorted_by_a_column_it_has() {
        for tab in [Tab::Services, Tab::Backends("a/b".into()), Tab::Drops, Tab::Maps] {
            assert!(Frame::own_order(&tab) > 0, "{tab:?}");
        }
    }
}
