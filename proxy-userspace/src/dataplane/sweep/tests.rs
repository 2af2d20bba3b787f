use std::io;

use proxy_common::{
    Ip4, Tuple,
    maps::{
        affinity::{Affinity, AffinityKey},
        conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags},
        counters::{CounterKey, Traffic},
        socket_datagrams::{ListedPair, SocketPair, kind},
    },
    packet::headers::tcp_flags::{ACK, FIN, RST},
    proto,
};

use super::*;
use crate::{
    dataplane::{MapName, MemoryMaps, Sockets, StaleSocket, testing::*},
    model::Family,
    plan::PortPlan,
};

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 100_000 * SECOND;

/// A service `a` on 172.30.0.1:53/UDP with backends 10.0.0.2 and 10.0.0.4.
fn setup() -> (MemoryMaps, Reconciler) {
    let mut maps = MemoryMaps::new(64);
    let mut reconciler = Reconciler::adopt(&mut maps).expect("empty maps");
    reconciler.update(name("a"), vec![plan("a", Family::V4, 1, &[2, 4])]);
    reconciler.prune();
    reconciler.apply(&mut maps);
    (maps, reconciler)
}

/// A connection to write into the table, seen `age` seconds ago.
struct Flow {
    proto: u8,
    backend: u8,
    age: u64,
    flags: u8,
    tcp: (u8, u8),
    snat: bool,
    /// One of several that are the same but for their ports.
    number: u16,
}

const UDP: Flow =
    Flow { proto: proto::UDP, backend: 2, age: 1, flags: 0, tcp: (0, 0), snat: false, number: 0 };
const TCP: Flow = Flow { proto: proto::TCP, tcp: (ACK | 2, ACK | 2), ..UDP };

impl Flow {
    fn rows(&self, maps: &MemoryMaps) -> Vec<(CtKey<Ip4>, CtEntry<Ip4>)> {
        let service = frontend(maps, 1).map_or(1, |frontend| frontend.service);
        let backend = Ip4::from([10, 0, 0, self.backend]);
        let id = maps.v4.backends.iter().position(|row| row.addr == backend).unwrap_or(40) as u32;
        let client: Tuple<Ip4> = Tuple {
            src: [10, 9, 9, 9].into(),
            dst: [172, 30, 0, 1].into(),
            sport: 1000 + u16::from(self.backend) + 100 * self.number,
            dport: 53,
            proto: self.proto,
        };
        let to_backend = Tuple { dst: backend, dport: 8080, ..client };
        let to_node = Tuple { src: [192, 168, 0, 2].into(), sport: 2000 + self.number, ..to_backend };
        let row = |hook, from: Tuple<Ip4>, to: Tuple<Ip4>, role: Role, tcp_flags| {
            let mut entry = CtEntry {
                last_seen: NOW - self.age * SECOND,
                service,
                backend: id,
                src: to.src,
                dst: to.dst,
                sport: to.sport,
                dport: to.dport,
                role: role.0,
                flags: self.flags | if self.snat { flags::SNAT } else { 0 },
                tcp_flags,
                ..CtEntry::default()
            };
            match role {
                _ if !self.snat => {}
                Role::DNAT | Role::REV_DNAT => entry.name_masquerade(to_node.src, to_node.sport),
                _ => entry.name_frontend(&client),
            }
            (CtKey::new(&from, hook), entry)
        };
        let mut rows = vec![
            row(INGRESS, client, to_backend, Role::DNAT, self.tcp.0),
            row(EGRESS, to_backend.reversed(), client.reversed(), Role::REV_DNAT, self.tcp.1),
        ];
        if self.snat {
            rows.push(row(EGRESS, to_backend, to_node, Role::SNAT, self.tcp.0));
            rows.push(row(INGRESS, to_node.reversed(), to_backend.reversed(), Role::REV_SNAT, self.tcp.1));
        }
        rows
    }
}

#[test]
fn what_connections_carried_outlives_them() {
    let (mut maps, reconciler) = setup();
    let count = |rows: Vec<(CtKey<Ip4>, CtEntry<Ip4>)>| {
        let counted = |(key, row)| (key, CtEntry { packets: 3, bytes: 300, kind: 1, ..row });
        rows.into_iter().map(counted).collect::<Vec<_>>()
    };
    let over = Flow { age: 31, snat: true, ..UDP };
    maps.v4.conntrack = count(over.rows(&maps));
    let open = Flow { backend: 4, ..UDP };
    maps.v4.conntrack.extend(count(open.rows(&maps)));
    let key = |backend: u8| {
        let backend = maps.v4.backends.iter().position(|row| row.addr == Ip4::from([10, 0, 0, backend]));
        let service = frontend(&maps, 1).expect("applied").service;
        CounterKey { service, backend: backend.expect("applied") as u32, kind: 1 }
    };
    let (first, second) = (key(2), key(4));
    let gone = CounterKey { service: 77, ..first };
    maps.v4.opened.extend([(first, 1), (second, 1), (gone, 9)]);
    let traffic = Traffic { in_packets: 3, in_bytes: 300, out_packets: 3, out_bytes: 300 };
    for _ in 0..2 {
        let survey = Survey::take(&mut maps, NOW, &Timeouts::default()).expect("memory");
        let served: HashMap<_, _> = survey.served().map(|(_, key, served)| (key, served)).collect();
        assert_eq!(served[&first], Served { opened: 1, open: 0, traffic });
        assert_eq!(served[&second], Served { opened: 1, open: 1, traffic });
        let verdict = reconciler.judge(&survey);
        survey.remove(&verdict, &mut maps, &mut Asked::default()).expect("memory");
        // Written once, when the rows went; nobody asks for a service that is gone.
        assert_eq!(maps.v4.traffic, [(first, traffic)].into());
        assert!(!maps.v4.opened.contains_key(&gone));
    }
}

/// Sockets as a list of what was asked to be destroyed.
#[derive(Default)]
struct Asked {
    stale: Vec<StaleSocket>,
    fails: bool,
}

impl Sockets for Asked {
    fn destroy(&mut self, stale: &[StaleSocket]) -> io::Result<usize> {
        self.stale.extend(stale);
        if self.fails { Err(io::ErrorKind::Other.into()) } else { Ok(stale.len()) }
    }
}

fn sweep(maps: &mut MemoryMaps, reconciler: &Reconciler) -> Swept {
    sweep_with(maps, reconciler, &mut Asked::default()).expect("memory")
}

/// A whole sweep.
fn sweep_with(
    maps: &mut MemoryMaps,
    reconciler: &Reconciler,
    sockets: &mut Asked,
) -> Result<Swept, SweepError> {
    let survey = Survey::take(maps, NOW, &Timeouts::default())?;
    let verdict = reconciler.judge(&survey);
    survey.remove(&verdict, maps, sockets)
}

fn check(flow: Flow, expected: Swept) {
    let (mut maps, reconciler) = setup();
    maps.v4.conntrack = flow.rows(&maps);
    let rows = maps.v4.conntrack.len();
    assert_eq!(sweep(&mut maps, &reconciler), expected);
    assert_eq!(maps.v4.conntrack.len(), if expected == KEPT { rows } else { 0 });
}

const KEPT: Swept = Swept { expired: 0, stale: 0, socket_pairs: 0, destroyed: 0, cut: [0, 0] };
const EXPIRED: Swept = Swept { expired: 1, ..KEPT };
const STALE: Swept = Swept { stale: 1, cut: [1, 0], ..KEPT };

#[test]
fn silent_connections_expire() {
    check(UDP, KEPT);
    check(Flow { age: 31, ..UDP }, EXPIRED);
    check(Flow { age: 31, snat: true, ..UDP }, EXPIRED);
    check(Flow { age: 31, flags: flags::LASTING, ..UDP }, KEPT);
    check(Flow { age: 121, flags: flags::LASTING, ..UDP }, EXPIRED);
    check(Flow { age: 86_000, ..TCP }, KEPT);
    check(Flow { age: 86_401, ..TCP }, EXPIRED);
    check(Flow { age: 100, tcp: (2, 0), ..TCP }, KEPT);
    check(Flow { age: 121, tcp: (2, 0), ..TCP }, EXPIRED);
    check(Flow { age: 3000, tcp: (ACK | FIN, ACK), snat: true, ..TCP }, KEPT);
    check(Flow { age: 3601, tcp: (ACK | FIN, ACK), ..TCP }, EXPIRED);
    check(Flow { age: 121, tcp: (ACK | FIN, ACK | FIN), ..TCP }, EXPIRED);
    check(Flow { age: 11, tcp: (ACK, ACK | RST), ..TCP }, EXPIRED);
}

#[test]
fn udp_to_a_foreign_backend_is_cut_and_tcp_is_not() {
    check(Flow { backend: 9, ..UDP }, STALE);
    check(Flow { backend: 9, snat: true, ..UDP }, STALE);
    check(Flow { backend: 9, ..TCP }, KEPT);
    check(Flow { backend: 9, proto: proto::SCTP, ..UDP }, KEPT);
}

#[test]
fn one_live_row_keeps_the_connection() {
    let (mut maps, reconciler) = setup();
    maps.v4.conntrack = Flow { age: 500, snat: true, ..UDP }.rows(&maps);
    maps.v4.conntrack[3].1.last_seen = NOW;
    assert_eq!(sweep(&mut maps, &reconciler), KEPT);
    assert_eq!(maps.v4.conntrack.len(), 4);
}

#[test]
fn rows_without_their_first_expire_alone() {
    let (mut maps, reconciler) = setup();
    maps.v4.conntrack = Flow { age: 31, ..UDP }.rows(&maps).split_off(1);
    assert_eq!(sweep(&mut maps, &reconciler), EXPIRED);
    assert!(maps.v4.conntrack.is_empty());
}

/// Nothing is known of the other direction, and most such rows belong to a connection.
#[test]
fn tcp_without_its_first_row_stays_until_it_tells_of_an_end() {
    let check = |age, tcp_flags, expected| {
        for snat in [false, true] {
            let (mut maps, reconciler) = setup();
            let flow = Flow { age, tcp: (tcp_flags, tcp_flags), snat, ..TCP };
            maps.v4.conntrack = flow.rows(&maps)[1..2].to_vec();
            assert_eq!(sweep(&mut maps, &reconciler), expected, "{age} {tcp_flags}");
        }
    };
    check(86_000, ACK | 2, KEPT);
    check(86_401, ACK | 2, EXPIRED);
    check(11, ACK | RST, EXPIRED);
    check(3_601, ACK | FIN, EXPIRED);
}

#[test]
fn what_is_left_to_netfilter_is_counted() {
    let (mut maps, _) = setup();
    maps.v4.conntrack = TCP.rows(&maps)[..1].to_vec();
    (maps.v4.conntrack[0].1.role, maps.v4.conntrack[0].1.service) = (Role::LEAVE.0, 0);
    assert_eq!(Survey::take(&mut maps, NOW, &Timeouts::default()).expect("memory").left(), 1);
}

/// A flow of another service has taken the place of one that was found stale.
#[test]
fn flows_that_others_have_replaced_stay() {
    let (mut maps, mut reconciler) = setup();
    maps.v4.conntrack = UDP.rows(&maps);
    let key = maps.v4.conntrack[0].0;
    let survey = Survey::take(&mut maps, NOW, &Timeouts::default()).expect("memory");
    reconciler.remove(name("a"));
    reconciler.apply(&mut maps);
    let verdict = reconciler.judge(&survey);
    maps.v4.conntrack.iter_mut().for_each(|(_, entry)| entry.service += 1);
    let swept = survey.remove(&verdict, &mut maps, &mut Asked::default()).expect("memory");
    assert_eq!(swept, KEPT);
    assert!(maps.v4.conntrack.iter().any(|(known, _)| *known == key));
}

#[test]
fn direct_returns_are_known_by_their_clients() {
    let check = |proto, age, tcp_flags, flags, backend, expected| {
        let (mut maps, reconciler) = setup();
        let flow = Flow { proto, age, flags, backend, tcp: (tcp_flags, 0), ..UDP };
        maps.v4.conntrack = flow.rows(&maps)[..1].to_vec();
        maps.v4.conntrack[0].1.role = Role::DSR.0;
        assert_eq!(sweep(&mut maps, &reconciler), expected, "{age} {tcp_flags} {flags}");
        assert_eq!(maps.v4.conntrack.len(), usize::from(expected == KEPT));
    };
    for (tcp_flags, seconds) in [(2, 120), (ACK | 2, 86_400), (ACK | FIN | 2, 120), (ACK | RST | 2, 10)] {
        check(proto::TCP, seconds, tcp_flags, 0, 2, KEPT);
        check(proto::TCP, seconds + 1, tcp_flags, 0, 2, EXPIRED);
    }
    check(proto::UDP, 30, 0, 0, 2, KEPT);
    check(proto::UDP, 31, 0, 0, 2, EXPIRED);
    check(proto::UDP, 120, 0, flags::LASTING, 2, KEPT);
    check(proto::UDP, 1, 0, 0, 9, STALE);
    check(proto::TCP, 1, ACK | 2, 0, 9, KEPT);
}

/// No service has them, and none cuts them: a backend of nobody is no reason.
#[test]
fn connections_of_nobody_end_like_others() {
    let check = |flow: Flow, roles: &[Role], expected| {
        for swap in [false, true] {
            let (mut maps, reconciler) = setup();
            let rows = flow.rows(&maps).into_iter().zip(roles).map(|((key, entry), role)| {
                let hook = if swap { INGRESS + EGRESS - key.hook } else { key.hook };
                (CtKey { hook, ..key }, CtEntry { role: role.0, service: 0, backend: 0, ..entry })
            });
            maps.v4.conntrack = rows.collect();
            assert_eq!(sweep(&mut maps, &reconciler), expected);
            assert_eq!(maps.v4.conntrack.len(), if expected == KEPT { roles.len() } else { 0 });
        }
    };
    let both = [Role::DIRECT, Role::REV_DIRECT];
    check(Flow { backend: 9, ..UDP }, &both, KEPT);
    check(Flow { age: 31, ..UDP }, &both, EXPIRED);
    check(Flow { age: 86_000, ..TCP }, &both, KEPT);
    check(Flow { age: 121, tcp: (ACK | FIN, ACK | FIN), ..TCP }, &both, EXPIRED);
    check(Flow { age: 100, tcp: (2, 0), ..TCP }, &both, KEPT);
    let place = [Role::PASS];
    check(Flow { backend: 9, ..UDP }, &place, KEPT);
    check(Flow { age: 31, ..UDP }, &place, EXPIRED);
    check(Flow { age: 121, tcp: (0, 0), ..TCP }, &place, EXPIRED);
    check(Flow { age: 86_000, tcp: (ACK, 0), ..TCP }, &place, KEPT);
    check(Flow { age: 121, tcp: (ACK | FIN, 0), ..TCP }, &place, EXPIRED);
}

#[test]
fn levels_are_those_of_maps_and_of_the_fullest_backend() {
    let (mut maps, mut reconciler) = setup();
    let settings = proxy_common::maps::settings::Settings { snat_port_count: 10, ..Default::default() };
    let node = crate::plan::NodePlan { settings, addresses: [].into(), service_cidrs: Some([].into()) };
    reconciler.set_node(node);
    let rows = |backend, number, tcp| Flow { backend, number, tcp, snat: true, ..TCP }.rows(&maps);
    let open = (2 | ACK, 2 | ACK);
    // One has ended, one is not yet a connection, one has gone on by another port.
    let held = [rows(2, 0, open), rows(4, 0, open), rows(4, 1, open)].concat();
    let free = [rows(2, 2, (2 | ACK | FIN, 2 | ACK | FIN)), rows(2, 3, (2, 2 | ACK))].concat();
    let mut late = rows(2, 0, open)[3];
    late.0.dport += 4;
    maps.v4.conntrack = [held, free, vec![late]].concat();
    let survey = Survey::take(&mut maps, NOW, &Timeouts::default()).expect("memory");
    let pressure = reconciler.pressure(&mut maps, &survey);
    let [ports] = pressure.snat[..] else { panic!("{:?}", pressure.snat) };
    assert_eq!((ports.address.to_string().as_str(), ports.protocol()), ("192.168.0.2", "TCP"));
    assert_eq!((ports.in_use, ports.fullest, ports.capacity, ports.level()), (3, 2, 10, 0.2));
    assert_eq!(ports.backend.to_string(), "10.0.0.4:8080");
    let fill = |map| {
        let fill = pressure.maps.iter().find(|fill| fill.map == map && fill.family != Some(Family::V6));
        fill.map(|fill| (fill.rows, fill.capacity)).expect("every map")
    };
    assert_eq!(fill(MapName::Conntrack), (survey.v4.conntrack, 64));
    assert_eq!(fill(MapName::Frontends), (2, 64));
    assert_eq!(fill(MapName::Backends), (2, 64));
    assert_eq!((fill(MapName::Slots), fill(MapName::Services)), ((2, 64), (1, 64)));
    assert_eq!((fill(MapName::Affinity), pressure.slots_for_tables), ((0, 64), 2));
}

#[test]
fn clients_count_while_they_stick() {
    let (mut maps, mut reconciler) = setup();
    let sticky = |secs| vec![PortPlan { affinity_secs: secs, ..plan("a", Family::V4, 1, &[2, 4]) }];
    reconciler.update(name("a"), sticky(60));
    reconciler.apply(&mut maps);
    let service = frontend(&maps, 1).expect("written").service;
    let row = |service, age: u64| {
        let client = [10, 9, 9, age as u8].into();
        let last_used = NOW - age * 1_000_000_000;
        (AffinityKey { client, service }, Affinity { last_used, backend: 1, slot: 0 })
    };
    maps.v4.affinity = [0, 1, 60, 61, 200].map(|age| row(service, age)).into();
    // The service it was of is gone.
    maps.v4.affinity.push(row(service + 1, 2));
    let rows = |maps: &mut MemoryMaps, reconciler: &Reconciler| {
        let survey = Survey::take(maps, NOW, &Timeouts::default()).expect("memory");
        let fills = reconciler.pressure(maps, &survey).maps;
        let fill = fills.iter().find(|fill| (fill.map, fill.family) == (MapName::Affinity, Some(Family::V4)));
        fill.expect("every map").rows
    };
    assert_eq!(rows(&mut maps, &reconciler), 3);
    reconciler.update(name("a"), sticky(0));
    reconciler.apply(&mut maps);
    assert_eq!(rows(&mut maps, &reconciler), 0, "nobody sticks any more");
}

#[test]
fn flows_follow_what_is_applied() {
    let (mut maps, mut reconciler) = setup();
    maps.v4.conntrack = [UDP, Flow { backend: 4, ..UDP }].iter().flat_map(|flow| flow.rows(&maps)).collect();
    reconciler.update(name("a"), vec![lingering(plan("a", Family::V4, 1, &[6]), &[4])]);
    reconciler.apply(&mut maps);
    assert_eq!(sweep(&mut maps, &reconciler), STALE);
    assert!(maps.v4.conntrack.iter().all(|(key, _)| key.sport == 1004 || key.dport == 1004));

    reconciler.update(name("a"), vec![plan("a", Family::V4, 2, &[4])]);
    reconciler.apply(&mut maps);
    assert_eq!(sweep(&mut maps, &reconciler), STALE, "the address is gone, though not the backend");
    assert!(maps.v4.conntrack.is_empty());
}

/// Sockets that speak to backend 10.0.0.`last` under the service's address: one that is connected, and one that
/// sends by address.
fn sockets(maps: &MemoryMaps, last: u8, backend_id: u32) -> Vec<ListedPair<Ip4>> {
    let pair = SocketPair {
        frontend: [172, 30, 0, 1].into(),
        backend: [10, 0, 0, last].into(),
        frontend_port: 53,
        backend_port: 8080,
        service: frontend(maps, 1).expect("written").service,
        backend_id,
    };
    [kind::SENT, kind::CONNECTED].map(|kind| ListedPair { cookie: [7, kind], kind, pair }).into()
}

fn backend_id(maps: &MemoryMaps, last: u8) -> u32 {
    let backend = Ip4::from([10, 0, 0, last]);
    maps.v4.backends.iter().position(|row| row.addr == backend).expect("written") as u32
}

#[test]
fn sockets_of_udp_follow_too() {
    let (mut maps, mut reconciler) = setup();
    maps.v4.socket_pairs = sockets(&maps, 2, backend_id(&maps, 2));
    assert_eq!(sweep(&mut maps, &reconciler), KEPT);
    reconciler.remove(name("a"));
    reconciler.apply(&mut maps);
    let mut asked = Asked { fails: true, ..Asked::default() };
    assert!(sweep_with(&mut maps, &reconciler, &mut asked).is_err());
    assert_eq!(maps.v4.socket_pairs.len(), 2, "what was not destroyed is tried again");
    asked = Asked::default();
    let swept = sweep_with(&mut maps, &reconciler, &mut asked).expect("memory");
    assert_eq!(swept, Swept { socket_pairs: 2, destroyed: 1, cut: [2, 0], ..KEPT });
    let stale = StaleSocket { cookie: 7 << 32 | 1, peer: "10.0.0.2:8080".parse().expect("address") };
    assert_eq!(asked.stale, [stale]);
    assert!(maps.v4.socket_pairs.is_empty());
}

#[test]
fn sockets_may_be_connected_as_before_the_last_connect() {
    let (mut maps, mut reconciler) = setup();
    let [sent, pair] = sockets(&maps, 2, backend_id(&maps, 2))[..] else { panic!("two pairs") };
    let pair = pair.pair;
    let direct = SocketPair::direct(pair.backend, pair.backend_port);
    let of = |socket, kind, pair| ListedPair { cookie: [7, socket], kind, pair };
    maps.v4.socket_pairs = vec![
        sent,
        of(1, kind::EARLIER, pair),
        of(2, kind::EARLIER, pair),
        of(2, kind::EARLIER, direct),
        of(3, kind::CONNECTED, direct),
        of(3, kind::EARLIER, pair),
        of(4, kind::CONNECTED, pair),
        of(4, kind::EARLIER, direct),
    ];
    reconciler.remove(name("a"));
    reconciler.apply(&mut maps);
    let mut asked = Asked::default();
    let swept = sweep_with(&mut maps, &reconciler, &mut asked).expect("memory");
    assert_eq!((swept.socket_pairs, swept.destroyed), (5, 2));
    asked.stale.sort_by_key(|socket| socket.cookie);
    assert_eq!(asked.stale.iter().map(|socket| socket.cookie as u32).collect::<Vec<_>>(), [1, 4]);
    assert!(maps.v4.socket_pairs.iter().all(|listed| listed.pair == direct), "{:?}", maps.v4.socket_pairs);
}

#[test]
fn a_backend_id_given_out_again_is_no_excuse() {
    let (mut maps, reconciler) = setup();
    maps.v4.socket_pairs = sockets(&maps, 9, backend_id(&maps, 4));
    assert_eq!(sweep(&mut maps, &reconciler), Swept { socket_pairs: 2, destroyed: 1, cut: [2, 0], ..KEPT });
}
