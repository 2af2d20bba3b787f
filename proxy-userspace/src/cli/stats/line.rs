//! The lines of `shunt stats`: a face of a service, and below it its backends.

use super::{
    super::{
        list::column::{Column, Shown, Value},
        usage::Counts,
    },
    view::{FaceView, Rates, ShareView},
};

/// A line of the table.
#[derive(Clone, Debug)]
pub(super) struct Line {
    protocol: &'static str,
    address: String,
    service: String,
    kind: &'static str,
    share: Option<f64>,
    counts: Counts,
    rates: Rates,
    exact: bool,
}

impl Line {
    /// The line of a face itself.
    pub(super) fn of_face(face: &FaceView, exact: bool) -> Self {
        Self {
            protocol: face.protocol,
            address: face.address(),
            service: face.service.clone(),
            kind: face.kind,
            share: None,
            counts: face.counts,
            rates: face.rates.unwrap_or_default(),
            exact,
        }
    }

    /// The line of one of its backends.
    pub(super) fn of_backend(backend: &ShareView, exact: bool) -> Self {
        Self {
            protocol: "",
            address: format!("  -> {}{}", backend.address, if backend.local { " *" } else { "" }),
            service: String::new(),
            kind: "",
            share: Some(backend.share),
            counts: backend.counts,
            rates: backend.rates.unwrap_or_default(),
            exact,
        }
    }

    fn count(&self, count: impl Fn(&Counts) -> u64) -> Value {
        let count = count(&self.counts);
        if self.exact { Value::Number(count) } else { Value::Rounded(count) }
    }

    fn rate(&self, rate: impl Fn(&Rates) -> f64) -> Value {
        let rate = rate(&self.rates);
        let tenths = (rate * 10.0).round() as u64;
        if self.exact || tenths < 100 { Value::Tenths(tenths) } else { Value::Rounded(rate.round() as u64) }
    }
}

/// What a line begins with.
pub(super) const HEAD: &[Column<Line>] = &[
    Column { name: "PROTO", shown: Shown::Always, value: |l| blank(l.protocol) },
    Column { name: "ADDRESS", shown: Shown::Always, value: |l| Value::text(l.address.as_str()) },
    Column { name: "SERVICE", shown: Shown::Always, value: |l| blank(&l.service) },
    Column { name: "KIND", shown: Shown::Always, value: |l| blank(l.kind) },
];

/// Totals since the maps were made.
pub(super) const TOTALS: &[Column<Line>] = &[
    Column { name: "CONNS", shown: Shown::Always, value: |l| l.count(|c| c.opened) },
    Column { name: "INPKTS", shown: Shown::Always, value: |l| l.count(|c| c.in_packets) },
    Column { name: "OUTPKTS", shown: Shown::Always, value: |l| l.count(|c| c.out_packets) },
    Column { name: "INBYTES", shown: Shown::Always, value: |l| l.count(|c| c.in_bytes) },
    Column { name: "OUTBYTES", shown: Shown::Always, value: |l| l.count(|c| c.out_bytes) },
];

/// How fast they grow.
pub(super) const RATES: &[Column<Line>] = &[
    Column { name: "CPS", shown: Shown::Always, value: |l| l.rate(|r| r.connections_per_second) },
    Column { name: "INPPS", shown: Shown::Always, value: |l| l.rate(|r| r.in_packets_per_second) },
    Column { name: "OUTPPS", shown: Shown::Always, value: |l| l.rate(|r| r.out_packets_per_second) },
    Column { name: "INBPS", shown: Shown::Always, value: |l| l.rate(|r| r.in_bytes_per_second) },
    Column { name: "OUTBPS", shown: Shown::Always, value: |l| l.rate(|r| r.out_bytes_per_second) },
];

/// What is open.
pub(super) const CONNECTIONS: &[Column<Line>] = &[
    Column {
        name: "SHARE",
        shown: Shown::Always,
        value: |l| l.share.map_or(Value::Blank, |share| Value::text(format!("{share}%"))),
    },
    Column { name: "ACTIVE", shown: Shown::Always, value: |l| l.count(|c| c.connections) },
    Column { name: "INACTIVE", shown: Shown::Always, value: |l| l.count(|c| c.inactive) },
];

/// Text, or nothing at all: what the line above says holds for this one, too.
fn blank(text: &str) -> Value {
    if text.is_empty() { Value::Blank } else { Value::text(text) }
}
