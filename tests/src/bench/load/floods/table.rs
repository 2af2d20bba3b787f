//! Floods in short: a row for each path, rate and contender.

use super::results::Flood;
use crate::bench::load::{Connections, table::dropped};

/// Heads of the columns.
pub const NAMES: [&str; 15] = [
    "path",
    "contender",
    "SYNs/s wished",
    "sent",
    "arrived",
    "no room",
    "established broken",
    "new failed",
    "beyond direct",
    "SYN resent",
    "connect before, µs",
    "connect meanwhile, µs",
    "CPU per SYN, µs",
    "connections kept",
    "dropped",
];

/// A row.
pub fn cells(flood: &Flood) -> [String; 15] {
    let Flood { before, meanwhile, established, broken, .. } = flood;
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    let share = |part: u64, of: u64| percent(part as f64 / of.max(1) as f64);
    let ratio = flood.to_direct().map(|ratio| format!(" ({ratio:.2})")).unwrap_or_default();
    [
        flood.path.name(),
        flood.contender.name(),
        flood.wished.to_string(),
        format!("{:.0}", flood.rate()),
        share(flood.arrived, flood.sent),
        share(flood.no_room, flood.sent),
        format!("{broken} of {established}"),
        format!("{} of {}", meanwhile.failed, meanwhile.tried),
        flood.failed_beyond().map_or("–".into(), percent),
        share(meanwhile.resent, meanwhile.tried),
        format!("{:.0} and {:.0}", before.p50_micros, before.p99_micros),
        format!("{:.0} and {:.0}", meanwhile.p50_micros, meanwhile.p99_micros),
        format!("{:.2}{ratio}", flood.cpu_micros),
        kept(flood.at_rest, flood.connections),
        dropped(flood.drops.as_ref()),
    ]
}

fn kept(at_rest: Option<Connections>, now: Option<Connections>) -> String {
    let Some(Connections { count, most, mib }) = now else { return "–".into() };
    let before = at_rest.and_then(|before| before.mib);
    let memory = before.zip(mib).map(|(before, now)| format!(", {before:.0} → {now:.0} MiB"));
    format!("{count} of {most}{}", memory.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{contender::Contender, load::floods::results::tests::flood, target::Path};

    #[test]
    fn a_flood_in_a_line() {
        let mut flood = flood(Path::OutsideRemote, Contender::ShuntAll);
        let cells = cells(&flood);
        assert_eq!(cells[2..6], ["200000", "200000", "91.67 %", "5.00 %"]);
        assert_eq!(cells[6..10], ["2 of 1000", "90 of 3000", "2.00 %", "1.00 %"]);
        assert_eq!(cells[10..13], ["90 and 400", "2000 and 9000", "6.00 (1.50)"]);
        assert_eq!(cells[13..], ["140000 of 262144, 12 → 32 MiB", "7 snat-ports-exhausted"]);
        flood = Flood { connections: None, beside: None, drops: None, ..flood };
        let cells = super::cells(&flood);
        assert_eq!([&cells[8], &cells[12], &cells[13], &cells[14]], ["–", "6.00", "–", "–"]);
    }
}
