//! Says what is about to run out, once: in the log, and as events on the node.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;
use tracing::warn;

use crate::{
    dataplane::{MapFill, MapName, Pressure, SnatPorts},
    watch::kube::{About, Events, Notice},
};

/// From this level on an operator should know.
const HIGH: f64 = 0.8;

/// What was told is told again only after it has been below this.
const LOW: f64 = 0.7;

/// Nothing is told twice within this time, however often it comes and goes.
const QUIET: Duration = Duration::from_secs(600);

/// What has been told.
#[derive(Default)]
pub(super) struct PressureWatch {
    events: Option<Events>,
    told: BTreeMap<(&'static str, String), Told>,
    refused: Option<Refused>,
}

/// Connections that were dropped so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refused {
    /// For want of a source port.
    pub(super) ports: u64,
    /// For want of a row of `conntrack`, or of memory for one.
    pub(super) rows: u64,
}

struct Told {
    at: Instant,
    /// It has not been low since.
    holds: bool,
}

impl PressureWatch {
    pub(super) fn new(events: Option<Events>) -> Self {
        Self { events, ..Self::default() }
    }

    /// Takes in the levels after a sweep, and how many connections were refused, if that is known.
    pub(super) fn look(&mut self, pressure: &Pressure, refused: Option<Refused>) {
        for notice in self.notices(pressure, refused, Instant::now()) {
            warn!(reason = notice.reason, subject = notice.subject, "{}", notice.note);
            if let Some(events) = &self.events {
                events.publish(notice);
            }
        }
    }

    fn notices(&mut self, pressure: &Pressure, refused: Option<Refused>, now: Instant) -> Vec<Notice> {
        let maps = pressure.maps.iter().map(|fill| (map_notice(fill), fill.level()));
        let ports = pressure.snat.iter().map(|ports| (ports_notice(ports), ports.level()));
        let mut notices: Vec<_> = maps.chain(ports).collect();
        notices.push((tables_notice(pressure.reduced_tables), pressure.reduced_tables as f64));
        notices.retain(|(notice, level)| self.is_news(notice, *level, now));
        let mut notices: Vec<_> = notices.into_iter().map(|(notice, _)| notice).collect();
        if let Some(refused) = refused {
            notices.extend(self.refused(pressure, refused, now));
        }
        notices
    }

    fn is_news(&mut self, notice: &Notice, level: f64, now: Instant) -> bool {
        let key = (notice.reason, notice.subject.clone());
        if let Some(told) = self.told.get_mut(&key) {
            told.holds &= level >= LOW;
            if told.holds || level < HIGH || now < told.at + QUIET {
                return false;
            }
        }
        if level >= HIGH {
            self.told.insert(key, Told { at: now, holds: true });
        }
        level >= HIGH
    }

    /// Connections that were refused since the last look.
    fn refused(&mut self, pressure: &Pressure, refused: Refused, now: Instant) -> Vec<Notice> {
        let Some(before) = self.refused.replace(refused) else { return Vec::new() };
        let notices = [
            no_ports_notice(pressure, refused.ports.saturating_sub(before.ports)),
            no_rows_notice(pressure, refused.rows.saturating_sub(before.rows)),
        ];
        let mut notices: Vec<_> = notices.into_iter().flatten().collect();
        notices.retain(|notice| {
            // Each time is told, though not too often.
            self.told.retain(|(reason, _), told| *reason != notice.reason || now < told.at + QUIET);
            self.is_news(notice, 1.0, now)
        });
        notices
    }
}

fn no_ports_notice(pressure: &Pressure, count: u64) -> Option<Notice> {
    let fullest = pressure.snat.iter().max_by(|a, b| a.level().total_cmp(&b.level()));
    let subject = fullest.map_or_else(|| "unknown".into(), |ports| ports.address.to_string());
    let note = format!(
        "{count} connections were dropped because no source port was left to masquerade them: more backends, \
         externalTrafficPolicy Local, a wider snatPortRange or further masqueradeAddresses help{}",
        fullest.map(|ports| format!("; {}", ports_in_use(ports))).unwrap_or_default()
    );
    (count > 0).then_some(Notice { about: About::Node, reason: "SnatPortsExhausted", subject, note })
}

/// A table that is not full had no memory.
fn no_rows_notice(pressure: &Pressure, count: u64) -> Option<Notice> {
    let tables = pressure.maps.iter().filter(|fill| fill.map == MapName::Conntrack);
    let rows: Vec<_> = tables.clone().map(|fill| format!("{} of {}", fill.rows, fill.capacity)).collect();
    let is_full = tables.clone().any(|fill| fill.level() >= HIGH);
    let cause = if is_full {
        "the table is full of connections that last: a larger maps.conntrackMemory helps"
    } else {
        "the kernel had no memory for them: entries count for the memory limit of the agent's container, and \
         maps.conntrackMemory has to be well below that"
    };
    let note = format!(
        "{count} connections were dropped because they found no room in conntrack ({} rows in use): {cause}",
        rows.join(" and ")
    );
    (count > 0).then_some(Notice {
        about: About::Node,
        reason: "ConntrackFull",
        subject: "conntrack".into(),
        note,
    })
}

fn map_notice(fill: &MapFill) -> Notice {
    let MapFill { map, capacity, .. } = fill;
    let subject = fill.family.map_or_else(|| map.to_string(), |family| format!("{map} {family}"));
    let consequence = match map {
        MapName::Conntrack => {
            "when it is full of connections that last, new ones are dropped (conntrack-full, maps.conntrackMemory)"
        }
        MapName::Affinity => "when it is full, clients that were silent longest may be sent elsewhere",
        MapName::Opened => "when it is full, connections to further backends are not counted",
        _ => "when it is full, changes of services are not carried out",
    };
    let note = format!("the map {subject} holds {} of {capacity} rows; {consequence}", fill.lasting());
    Notice { about: About::Node, reason: "MapAlmostFull", subject, note }
}

fn ports_notice(ports: &SnatPorts) -> Notice {
    let subject = format!("{} {}", ports.address, ports.protocol());
    let note = format!(
        "{}; further connections may find none (snatPortRange, masqueradeAddresses)",
        ports_in_use(ports)
    );
    Notice { about: About::Node, reason: "SnatPortsAlmostExhausted", subject, note }
}

fn ports_in_use(ports: &SnatPorts) -> String {
    let SnatPorts { address, backend, fullest, capacity, .. } = ports;
    format!(
        "{fullest} of {capacity} source ports of {address} are in use towards {backend}/{}",
        ports.protocol()
    )
}

fn tables_notice(count: usize) -> Notice {
    let note = format!(
        "{count} lookup tables are smaller than they should be, because the map slots has no room for them (maps.slots)"
    );
    Notice { about: About::Node, reason: "TablesReduced", subject: "slots".into(), note }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Family;

    fn fill(rows: usize) -> Pressure {
        let fill =
            MapFill { map: MapName::Conntrack, family: Some(Family::V4), rows, transient: 0, capacity: 100 };
        Pressure { maps: vec![fill], ..Pressure::default() }
    }

    fn ports(last: u8, fullest: usize) -> SnatPorts {
        let backend = "10.0.0.2:80".parse().expect("an address");
        SnatPorts {
            address: [192, 0, 2, last].into(),
            proto: 6,
            in_use: 2 * fullest,
            backend,
            fullest,
            capacity: 1000,
        }
    }

    #[test]
    fn a_level_is_told_once_until_it_falls() {
        let mut watch = PressureWatch::default();
        let start = Instant::now();
        let mut check = |rows, minutes: u64, expected| {
            let notices = watch.notices(&fill(rows), None, start + Duration::from_secs(60 * minutes));
            assert_eq!(notices.len(), expected, "{rows} after {minutes}: {notices:?}");
        };
        check(79, 0, 0);
        check(80, 0, 1);
        check(95, 20, 0);
        check(75, 30, 0);
        check(85, 31, 0);
        check(69, 32, 0);
        check(85, 33, 1);
        check(60, 34, 0);
        check(99, 35, 0);
        check(99, 44, 1);
    }

    #[test]
    fn each_address_is_told_by_itself() {
        let mut watch = PressureWatch::default();
        let pressure = |fullest: [usize; 2]| Pressure {
            snat: vec![ports(1, fullest[0]), ports(2, fullest[1])],
            ..Pressure::default()
        };
        let now = Instant::now();
        let first = watch.notices(&pressure([800, 10]), None, now);
        assert_eq!(first.len(), 1);
        assert_eq!(first[0].subject, "192.0.2.1 TCP");
        assert!(
            first[0]
                .note
                .starts_with("800 of 1000 source ports of 192.0.2.1 are in use towards 10.0.0.2:80/TCP")
        );
        let second = watch.notices(&pressure([900, 900]), None, now);
        assert_eq!(second.len(), 1);
        assert_eq!(second[0].subject, "192.0.2.2 TCP");
    }

    #[test]
    fn refused_connections_are_told_with_the_address() {
        let mut watch = PressureWatch::default();
        let pressure = Pressure { snat: vec![ports(1, 500), ports(2, 700)], ..Pressure::default() };
        let start = Instant::now();
        let mut check = |refused: Option<u64>, minutes: u64, expected: Option<&str>| {
            let now = start + Duration::from_secs(60 * minutes);
            let refused = refused.map(|ports| Refused { ports, rows: 0 });
            let notice = watch.notices(&pressure, refused, now).pop();
            let said = notice.as_ref().map(|notice| (notice.subject.as_str(), notice.note.split(' ').next()));
            assert_eq!(said, expected.map(|count| ("192.0.2.2", Some(count))), "{refused:?} after {minutes}");
        };
        check(Some(40), 0, None);
        check(Some(40), 0, None);
        check(None, 0, None);
        check(Some(47), 0, Some("7"));
        check(Some(60), 5, None);
        check(Some(61), 11, Some("1"));
        check(Some(0), 30, None);
    }

    #[test]
    fn connections_without_room_are_told_with_what_helps() {
        let told = |rows| {
            let mut watch = PressureWatch::default();
            // What is high is told first, and only once.
            let now = Instant::now();
            watch.notices(&fill(rows), Some(Refused { ports: 0, rows: 40 }), now);
            watch.notices(&fill(rows), Some(Refused { ports: 0, rows: 47 }), now)
        };
        for (rows, helps) in
            [(100, "a larger maps.conntrackMemory"), (20, "memory limit of the agent's container")]
        {
            let notices = told(rows);
            let [notice] = &notices[..] else { panic!("not one: {notices:?}") };
            assert_eq!(notice.reason, "ConntrackFull");
            let begin = format!(
                "7 connections were dropped because they found no room in conntrack ({rows} of 100 rows"
            );
            assert!(notice.note.starts_with(&begin) && notice.note.contains(helps), "{}", notice.note);
        }
    }

    #[test]
    fn tables_without_room_are_told() {
        let mut watch = PressureWatch::default();
        let pressure = Pressure { reduced_tables: 3, ..Pressure::default() };
        assert_eq!(watch.notices(&pressure, None, Instant::now())[0].reason, "TablesReduced");
        assert!(watch.notices(&pressure, None, Instant::now()).is_empty());
    }
}
