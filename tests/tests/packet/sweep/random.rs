//! The kernel's sweep of tables as they may come to be, beside the same rules on rows in memory.

use std::{collections::BTreeMap, fmt::Debug, hash::Hash};

use proxy_common::{
    Addr, Ip4, Ip6, Tuple,
    maps::{
        conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags},
        sweep::{SweptConnection, flags::OVER},
    },
    packet::headers::tcp_flags::{ACK, FIN, RST, SYN},
    proto,
};
use proxy_userspace::{
    dataplane::{FamilyMaps, MapAddr, MapStore as _, MemoryMaps, Timeouts},
    kernel::KernelAddr,
};
use tests::mutate::Rng;

use crate::bench::Bench;

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 1_000_000 * SECOND;
/// Enough that the kernel does not tell of all at once.
const CONNECTIONS: u16 = 3_000;

/// The rows of a connection in some state, of which any may be missing.
fn connection<A: Addr>(rng: &mut Rng, number: u16, addr: fn(u8) -> A) -> Vec<(CtKey<A>, CtEntry<A>)> {
    let proto = [proto::TCP, proto::UDP, proto::SCTP][rng.below(3)];
    let tuple = |src, dst, sport, dport| Tuple { src: addr(src), dst: addr(dst), sport, dport, proto };
    let backend = 10 + rng.below(8) as u8;
    let original = tuple(1 + rng.below(3) as u8, 5, number, 80);
    let inside = Tuple { dst: addr(backend), dport: 8080, ..original };
    let wire = Tuple { src: addr(9), sport: number ^ 0x5555, ..inside };
    let is_masqueraded = rng.below(2) == 0;
    let owner = rng.below(4) as u32;
    let mut row = |hook, from: Tuple<A>, to: Tuple<A>, role: Role| {
        let age = [0, 5, 20, 60, 200, 4_000, 90_000][rng.below(7)] * SECOND;
        let mut row =
            CtEntry { service: owner, backend: backend.into(), role: role.0, kind: 1, ..CtEntry::default() };
        row.set_target(&to);
        row.last_seen = NOW - age;
        row.tcp_flags = [SYN, SYN | ACK, ACK, ACK | FIN, ACK | RST, 0][rng.below(6)];
        row.flags = if is_masqueraded { flags::SNAT } else { 0 } | [0, flags::LASTING][rng.below(2)];
        row.packets = rng.below(3) as u64;
        row.bytes = 100 * row.packets;
        match role {
            _ if !is_masqueraded => {}
            Role::DNAT | Role::REV_DNAT => row.name_masquerade(wire.src, wire.sport),
            _ => row.name_frontend(&original),
        }
        (CtKey::new(&from, hook), row)
    };
    let mut rows = match role_of(number) {
        Role::DNAT => vec![
            row(INGRESS, original, inside, Role::DNAT),
            row(EGRESS, inside.reversed(), original.reversed(), Role::REV_DNAT),
        ],
        Role::HOST => vec![
            row(EGRESS, original, wire, Role::HOST),
            row(INGRESS, wire.reversed(), original.reversed(), Role::REV_HOST),
        ],
        Role::DIRECT => vec![
            row(INGRESS, inside, wire, Role::DIRECT),
            row(EGRESS, wire.reversed(), inside.reversed(), Role::REV_DIRECT),
        ],
        alone => vec![row(INGRESS, original, inside, alone)],
    };
    if is_masqueraded && role_of(number) == Role::DNAT {
        rows.push(row(EGRESS, inside, wire, Role::SNAT));
        rows.push(row(INGRESS, wire.reversed(), inside.reversed(), Role::REV_SNAT));
    }
    rows.retain(|_| rng.below(8) != 0);
    rows
}

/// Most connections are led to a backend.
fn role_of(number: u16) -> Role {
    let others = [Role::HOST, Role::DIRECT, Role::DSR, Role::PASS, Role::LEAVE];
    others.get(usize::from(number) % 10).copied().unwrap_or(Role::DNAT)
}

type Table<A> = BTreeMap<String, (CtKey<A>, CtEntry<A>)>;

fn table<A: MapAddr>(maps: &impl FamilyMaps<A>) -> Table<A> {
    let mut rows = Table::new();
    maps.each_conntrack(&mut |key, row| {
        rows.insert(format!("{key:?}"), (*key, *row));
    })
    .expect("rows");
    rows
}

/// What a sweep tells, in an order.
fn sweep<A: MapAddr>(maps: &mut impl FamilyMaps<A>) -> Vec<SweptConnection<A>> {
    let mut found = Vec::new();
    maps.sweep(NOW, Timeouts::default().into(), &mut |swept| found.push(*swept)).expect("a sweep");
    found.sort_by_cached_key(|swept| format!("{swept:?}"));
    found
}

fn carried<A: MapAddr>(maps: &impl FamilyMaps<A>) -> BTreeMap<String, String> {
    let sums = maps.traffic().expect("sums");
    sums.iter().map(|(key, sum)| (format!("{:?}", key.by_anybody()), format!("{sum:?}"))).collect()
}

/// Sweeps the same rows in the kernel and in memory.
fn check<A: KernelAddr + MapAddr + Debug + Hash>(
    kernel: &mut impl FamilyMaps<A>,
    memory: &mut impl FamilyMaps<A>,
    addr: fn(u8) -> A,
) {
    let mut rng = Rng::new(7);
    let rows: Vec<_> = (1..CONNECTIONS).flat_map(|number| connection(&mut rng, number, addr)).collect();
    kernel.put_conntrack(&rows).expect("room");
    memory.put_conntrack(&rows).expect("memory");
    assert_eq!(table(kernel), table(memory));

    let told = sweep(memory);
    let is_over = |swept: &SweptConnection<A>| swept.flags & OVER != 0;
    assert!(told.iter().any(is_over) && !told.iter().all(is_over));
    // Where one has gone, the kernel may pass over the next.
    let looks = (0..10).take_while(|_| {
        let before = table(kernel).len();
        sweep(kernel);
        table(kernel).len() < before
    });
    assert!((1..10).contains(&looks.count()));
    assert_eq!(table(kernel), table(memory));
    assert_eq!(sweep(kernel), sweep(memory), "what is left");
    assert_eq!(carried(kernel), carried(memory));

    let left = sweep(memory);
    let stale = left.iter().filter(|swept| swept.may_be_cut() && swept.way.backend < 13);
    let ways: Vec<_> = stale.map(|swept| swept.way).collect();
    let cut = memory.cut(&ways).expect("memory");
    assert!(cut > 100, "{cut}");
    assert_eq!(kernel.cut(&ways).expect("a sweep"), cut);
    assert_eq!(table(kernel), table(memory));
    assert_eq!(carried(kernel), carried(memory));
}

#[test]
fn the_kernel_sweeps_as_the_rules_say() {
    let mut bench = Bench::with_conntrack(16_384);
    let mut memory = MemoryMaps::new(64);
    check(bench.maps.v4(), memory.v4(), |last| Ip4::from([10, 0, 0, last]));
    check(bench.maps.v6(), memory.v6(), |last| {
        let mut octets = [0xfd; 16];
        octets[15] = last;
        Ip6::from(octets)
    });
}
