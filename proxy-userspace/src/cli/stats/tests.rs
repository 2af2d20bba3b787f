//! Tables of counters made by hand.

use clap::Parser;
use proxy_common::{
    addr::Ip4,
    maps::{
        backends::{Backend, flags},
        conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role},
        counters::{CounterKey, Traffic},
        frontends::{Frontend, FrontendKey, Kind},
        slots::SlotRange,
    },
    proto,
    tuple::Tuple,
};

use super::*;
use crate::cli::{Cli, Command, rows::Names};

const VIP: Ip4 = Ip4 { octets: [10, 96, 0, 1] };
const CLIENT: Ip4 = Ip4 { octets: [10, 0, 0, 99] };

fn backend(last: u8) -> Backend<Ip4> {
    let addr = Ip4 { octets: [10, 0, 0, last] };
    Backend {
        addr,
        port: 8080,
        proto: proto::TCP,
        flags: flags::PRESENT | if last == 1 { flags::LOCAL } else { 0 },
    }
}

/// Two backends, one of which has three slots of four; a connection that is open.
fn tables() -> Tables {
    let mut tables =
        Tables { names: Names::new([(1, "shop/web".to_owned())].into(), false), ..Tables::default() };
    let rows = &mut tables.v4;
    let cluster = SlotRange { offset: 0, len: 4 };
    let frontend = Frontend { service: 1, kind: Kind::LOAD_BALANCER.0, cluster, ..Frontend::default() };
    for last in [1, 2] {
        let addr = Ip4 { octets: [198, 51, 100, last] };
        rows.frontends.push((FrontendKey { addr, port: 80, proto: proto::TCP, pad: 0 }, frontend));
    }
    rows.slots = vec![7, 7, 8, 7];
    rows.backends.extend([(7, backend(1)), (8, backend(2))]);
    let key = |backend| CounterKey { service: 1, backend, kind: Kind::LOAD_BALANCER.0.into() };
    // Backend 9 is gone.
    rows.opened = vec![(key(7), 10), (key(8), 123_456), (key(9), 1)];
    let traffic = Traffic { in_packets: 1, in_bytes: 100, out_packets: 2, out_bytes: 2_000_000 };
    rows.traffic = vec![(key(8), traffic)];
    let tuple = Tuple { src: CLIENT, dst: VIP, sport: 4000, dport: 80, proto: proto::TCP };
    let target = Tuple { dst: backend(1).addr, dport: 8080, ..tuple };
    let mut add = |at: &Tuple<Ip4>, hook, role: Role, to: &Tuple<Ip4>, packets| {
        let mut entry = CtEntry {
            service: 1,
            backend: 7,
            kind: Kind::LOAD_BALANCER.0,
            role: role.0,
            tcp_flags: 18,
            packets,
            bytes: packets * 100,
            ..CtEntry::default()
        };
        entry.set_target(to);
        rows.conntrack.insert(CtKey::new(at, hook), entry);
    };
    add(&tuple, INGRESS, Role::DNAT, &target, 5);
    add(&target.reversed(), EGRESS, Role::REV_DNAT, &tuple.reversed(), 6);
    tables
}

fn shown(flags: &str) -> String {
    let line = format!("shunt stats {flags}");
    let Command::Stats(args) = Cli::try_parse_from(line.split_whitespace()).expect(flags).command else {
        panic!("not the stats: {line}")
    };
    let columns = columns(&args).expect("columns");
    let tables = tables();
    let mut services = Sample::of(&tables).faces(&tables);
    if args.rate {
        services.iter_mut().for_each(|face| face.set_rates(4.0));
    }
    sort(&args, &columns, &mut services);
    table(&args, &columns, &services)
}

#[test]
fn totals_of_live_and_past_connections() {
    assert_eq!(
        shown(""),
        "\
PROTO  ADDRESS               SERVICE   KIND          CONNS  INPKTS  OUTPKTS  INBYTES  OUTBYTES
TCP    198.51.100.1:80 +1    shop/web  LoadBalancer  123K   6       8        600      2001K
         -> 10.0.0.1:8080 *                          10     5       6        500      600
         -> 10.0.0.2:8080                            123K   1       2        100      2000K"
    );
    let exact = shown("--exact --no-headers");
    assert!(exact.contains("123467") && exact.contains("2000600"), "{exact}");
}

#[test]
fn rates_and_connections() {
    let rates = shown("--rate --interval 4");
    let columns: Vec<_> = rates.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(columns[0][4..], ["CPS", "INPPS", "OUTPPS", "INBPS", "OUTBPS"]);
    assert_eq!(columns[2][3..], ["2.5", "1.3", "1.5", "125", "150"], "{rates}");
    let connections = shown("--connections");
    let columns: Vec<_> =
        connections.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(columns[0][4..], ["SHARE", "ACTIVE", "INACTIVE"]);
    assert_eq!(columns[2][3..], ["75%", "1", "0"], "{connections}");
    assert_eq!(columns[3][2..], ["25%", "0", "0"], "{connections}");
}

#[test]
fn columns_of_other_views_are_named_in_the_error() {
    let args = |line: &str| match Cli::try_parse_from(line.split(' ')).expect(line).command {
        Command::Stats(args) => args,
        other => panic!("{other:?}"),
    };
    assert!(columns(&args("shunt stats --sort inpkts")).is_ok());
    assert!(columns(&args("shunt stats --sort cps")).is_err());
    assert!(Cli::try_parse_from(["shunt", "stats", "--rate", "--connections"]).is_err());
    assert!(Cli::try_parse_from(["shunt", "stats", "--rate", "--interval", "0"]).is_err());
}
