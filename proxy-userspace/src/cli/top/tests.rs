//! Frames of maps made by hand.

use std::time::Duration;

use proxy_common::{
    addr::Ip4,
    maps::{
        backends::{Backend, flags::PRESENT},
        counters::{CounterKey, Traffic},
        frontends::{Frontend, FrontendKey, Kind},
        slots::SlotRange,
    },
    proto,
};

use super::{
    super::{
        list::drop,
        rows::{Names, Tables},
        stats::view::Sample,
    },
    reading::Fill,
    *,
};
use crate::kernel::MapSize;

const KEY: CounterKey = CounterKey { service: 1, backend: 7, kind: Kind::CLUSTER_IP.0 as u32 };

/// One service with one backend, which has been connected to `opened` times.
fn reading(at: std::time::Instant, opened: u64) -> Reading {
    let mut tables =
        Tables { names: Names::new([(1, "shop/web:http".to_owned())].into(), false), ..Tables::default() };
    let frontend = Frontend {
        service: 1,
        kind: Kind::CLUSTER_IP.0,
        cluster: SlotRange { offset: 0, len: 1 },
        ..Frontend::default()
    };
    let key = FrontendKey { addr: Ip4 { octets: [10, 96, 0, 1] }, port: 80, proto: proto::TCP, pad: 0 };
    tables.v4.frontends.push((key, frontend));
    tables.v4.slots.push(7);
    let addr = Ip4 { octets: [10, 0, 0, 5] };
    tables.v4.backends.insert(7, Backend { addr, port: 8080, proto: proto::TCP, flags: PRESENT });
    tables.v4.opened.push((KEY, opened));
    let traffic = Traffic { in_packets: opened * 10, in_bytes: opened * 1000, out_packets: 5, out_bytes: 50 };
    tables.v4.traffic.push((KEY, traffic));
    let sample = Sample::of(&tables);
    let refused = vec![drop::view(proxy_common::DropReason::UnknownPort, None, opened)];
    let size = MapSize { capacity: 40, memory: 120_000 };
    let fills = vec![Fill { map: "conntrack", family: "IPv4", rows: 10, size }];
    Reading { at, tables, sample, refused, fills }
}

fn frame() -> Frame {
    let start = std::time::Instant::now();
    Frame::of(&reading(start + Duration::from_secs(2), 250), &reading(start, 50))
}

fn drawn(state: &mut State) -> String {
    let mut buffer = Buffer::empty(Rect::new(0, 0, 120, 6));
    let area = buffer.area;
    draw::draw(&frame(), state, area, &mut buffer);
    draw::text(&buffer)
}

/// Lines with single spaces.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn services_with_their_rates() {
    let text = drawn(&mut State::default());
    let lines = lines(&text);
    assert!(lines[0].contains("[services]"), "{text}");
    assert!(
        lines[1].starts_with("1 services 0 open connections per second: 100 connections, 1000 packets in"),
        "{text}"
    );
    assert_eq!(lines[2], "SERVICE PROTO CPS▾ INPPS OUTPPS INBPS OUTBPS ACTIVE OPENED");
    assert_eq!(lines[3], "shop/web:http TCP 100 1000 0 100K 0 0 250");
    assert!(lines[5].contains("q quit"), "{text}");
}

#[test]
fn backends_drops_and_maps() {
    let mut state = State::default();
    state.show(Tab::Backends("shop/web:http".into()));
    let text = drawn(&mut state);
    assert!(text.contains("[backends]") && text.contains("of shop/web:http"), "{text}");
    assert_eq!(lines(&text)[3], "10.0.0.5:8080 elsewhere 100 1000 0 100K 0 0 250");
    state.show(Tab::Drops);
    let text = drawn(&mut state);
    assert!(lines(&text)[3].starts_with("unknown-port * 100 250 The ClusterIP exists"), "{text}");
    state.show(Tab::Maps);
    let text = drawn(&mut state);
    assert_eq!(
        lines(&text)[3],
        format!("conntrack IPv4 10 40 120K 25.0 {}{}", "█".repeat(5), "·".repeat(15))
    );
}

#[test]
fn the_selected_row_is_known_by_its_name() {
    let mut state = State { selected: 9, ..State::default() };
    drawn(&mut state);
    assert_eq!((state.selected, state.name.as_deref(), state.drawn), (0, Some("shop/web:http"), (1, 9)));
    state.filter = "nothing".into();
    drawn(&mut state);
    assert_eq!((state.name.as_deref(), state.drawn.0), (None, 0));
}

#[test]
fn maps_that_vanish_are_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let interval = Duration::from_millis(1);
    let mut source = Source { bpffs: dir.path().to_owned(), interval, last: None, frame: frame() };
    let next = source.next();
    assert_eq!(next.tone, Tone::Alarm);
    assert!(next.summary.starts_with("cannot read the maps, trying again: "), "{}", next.summary);
    assert_eq!(next.grid(&Tab::Services).rows.len(), 1, "the last frame stays");
}
