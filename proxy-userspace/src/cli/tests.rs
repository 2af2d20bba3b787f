//! Views from rows made by hand.

use std::collections::HashMap;

use clap::CommandFactory;
use proxy_common::{
    addr::Ip4,
    maps::{
        affinity::{Affinity, AffinityKey},
        backends::{Backend, flags as backend},
        conntrack::{CtEntry, CtKey, EGRESS, INGRESS, Role, flags as ct},
        frontends::{ClientRule, Frontend, FrontendKey, Kind, flags},
        node_addresses,
        slots::SlotRange,
    },
    proto,
    tuple::Tuple,
};

use super::{
    list::{
        Listed, affinity, backend as backends,
        column::table,
        conn::{self, Clock, ConnView, TcpState},
        service::{self, FrontendView},
    },
    rows::{Names, Rows},
    *,
};

const VIP: Ip4 = Ip4 { octets: [10, 96, 0, 1] };
const NODE: Ip4 = Ip4 { octets: [192, 168, 0, 2] };
const CLIENT: Ip4 = Ip4 { octets: [203, 0, 113, 9] };
const POD: Ip4 = Ip4 { octets: [10, 0, 0, 5] };
const FAR: Ip4 = Ip4 { octets: [10, 0, 1, 6] };

fn at(now: u64) -> Clock {
    Clock { now, ..Clock::default() }
}

fn services(views: &[FrontendView], wide: bool) -> String {
    let shown: Vec<_> = views.iter().filter(|view| wide || !view.is_detail()).cloned().collect();
    table(&shown, FrontendView::COLUMNS, wide, true)
}

fn connections(views: &[ConnView]) -> String {
    table(views, ConnView::COLUMNS, false, true)
}

fn names() -> Names {
    Names::new(HashMap::from([(1, "default/web:http".to_owned())]), false)
}

fn key(addr: Ip4, port: u16) -> FrontendKey<Ip4> {
    FrontendKey { addr, port, proto: proto::TCP, pad: 0 }
}

/// A ClusterIP, its NodePort with policy Local, and the row of the whole address.
fn rows() -> Rows<Ip4> {
    let rule = |bits| ClientRule(bits);
    let cluster_ip = Frontend {
        service: 1,
        kind: Kind::CLUSTER_IP.0,
        cluster: SlotRange { offset: 1, len: 2 },
        ..Frontend::default()
    };
    let node_port = Frontend {
        kind: Kind::NODE_PORT.0,
        rules: ClientRule::pack(rule(0), rule(ClientRule::SNAT), rule(ClientRule::LOCAL | ClientRule::DROP)),
        local: SlotRange { offset: 3, len: 1 },
        affinity_secs: 60,
        ..cluster_ip
    };
    let address = Frontend { kind: Kind::ADDRESS.0, service: 1, ..Frontend::default() };
    let pod = Backend { addr: POD, port: 8080, proto: proto::TCP, flags: backend::PRESENT | backend::LOCAL };
    let far = Backend { addr: FAR, flags: backend::PRESENT, ..pod };
    Rows {
        frontends: vec![
            (key(VIP, 80), cluster_ip),
            (key(Ip4::default(), 30080), node_port),
            (FrontendKey { addr: VIP, ..FrontendKey::default() }, address),
        ],
        backends: HashMap::from([(7, pod), (8, far)]),
        slots: vec![99, 8, 7, 7],
        conntrack: HashMap::new(),
        affinity: Vec::new(),
        netns_addresses: HashMap::new(),
        opened: Vec::new(),
        traffic: Vec::new(),
        node_addresses: vec![(NODE, node_addresses::flags::NODE_PORTS), (POD, 0)],
    }
}

/// A masqueraded connection from outside to the NodePort.
fn connect(rows: &mut Rows<Ip4>, sport: u16, forward: u8, reply: u8) {
    let original = Tuple { src: CLIENT, dst: NODE, sport, dport: 30080, proto: proto::TCP };
    let target = Tuple { dst: POD, dport: 8080, ..original };
    let masked = Tuple { src: NODE, sport: sport + 1, ..target };
    let mut row = |at: Tuple<Ip4>, hook, to: Tuple<Ip4>, role: Role, tcp_flags| {
        let entry = CtEntry {
            last_seen: 5_000_000_000,
            service: 1,
            backend: 7,
            src: to.src,
            dst: to.dst,
            sport: to.sport,
            dport: to.dport,
            role: role.0,
            flags: ct::SNAT,
            tcp_flags,
            ..CtEntry::default()
        };
        rows.conntrack.insert(CtKey::new(&at, hook), entry);
    };
    row(original, INGRESS, target, Role::DNAT, forward);
    row(target, EGRESS, masked, Role::SNAT, forward);
    row(masked.reversed(), INGRESS, target.reversed(), Role::REV_SNAT, reply);
    row(target.reversed(), EGRESS, original.reversed(), Role::REV_DNAT, reply);
}

const SYN: u8 = 2;
const ACK: u8 = 16;
const FIN: u8 = 1;

#[test]
fn services_with_their_policies_and_backends() {
    let mut rows = rows();
    connect(&mut rows, 4000, SYN | ACK, SYN | ACK);
    connect(&mut rows, 5000, SYN | ACK | FIN, SYN | ACK | FIN);
    let mut views = service::frontends(&rows, &names());
    service::sort(&mut views);
    let brief: Vec<_> = views
        .iter()
        .map(|v| {
            let backends: Vec<_> = v
                .backends
                .iter()
                .map(|b| {
                    format!(
                        "{}{}={}",
                        b.address,
                        if b.local { "*" } else { "" },
                        b.counts.unwrap().connections
                    )
                })
                .collect();
            let backends = backends.join(" ");
            format!(
                "{} {} {}:{} {} {} [{backends}]",
                v.service,
                v.kind,
                v.address,
                v.port,
                v.policy,
                v.counts.unwrap().connections
            )
        })
        .collect();
    assert_eq!(
        brief,
        [
            "default/web:http Address 10.96.0.1:0 Cluster 0 []",
            "default/web:http ClusterIP 10.96.0.1:80 Cluster 0 [10.0.0.5:8080*=0 10.0.1.6:8080=0]",
            "default/web:http NodePort *:30080 Local 1 [10.0.0.5:8080*=1 10.0.1.6:8080=0]",
        ]
    );
    assert_eq!(views[2].node_addresses, ["192.168.0.2"]);
    assert_eq!(views[2].rules.external, ["local", "drop"]);
}

#[test]
fn what_is_not_the_default_of_the_load_balancer() {
    let mut rows = rows();
    let (_, node_port) = &mut rows.frontends[1];
    let snat = ClientRule(ClientRule::SNAT);
    node_port.rules = ClientRule::pack(snat, snat, ClientRule(ClientRule::DSR));
    node_port.flags = flags::MAGLEV;
    node_port.cluster = SlotRange { offset: 1, len: 1 };
    let mut views = service::frontends(&rows, &names());
    service::sort(&mut views);
    assert_eq!((views[1].mode, views[1].algorithm), ("snat", "random"));
    assert_eq!((views[2].mode, views[2].algorithm), ("dsr", "maglev"));
    assert_eq!(views[2].rules.external, ["dsr"]);
    let backends: Vec<_> = views[2].backends.iter().map(|backend| &*backend.address).collect();
    assert_eq!(backends, ["10.0.1.6:8080"], "backends here that nobody draws are not shown");
    assert!(services(&views, false).contains("Cluster dsr maglev"));
}

#[test]
fn connections_with_their_source_and_state() {
    let mut rows = rows();
    connect(&mut rows, 4000, SYN | ACK, SYN | ACK);
    connect(&mut rows, 5000, SYN, 0);
    let mut views = conn::connections(&rows, &names(), &at(8_000_000_000));
    conn::sort(&mut views);
    let [first, second] = &views[..] else { panic!("one row each: {views:?}") };
    assert_eq!(first.client.to_string(), "203.0.113.9:4000");
    assert_eq!(first.frontend.to_string(), "192.168.0.2:30080");
    assert_eq!(first.backend.unwrap().to_string(), "10.0.0.5:8080");
    assert_eq!(first.snat.map(|s| s.to_string()).as_deref(), Some("192.168.0.2:4001"));
    assert_eq!((first.state, first.idle_seconds), (Some(TcpState::Established), 3));
    assert_eq!(second.state, Some(TcpState::SynSent));
}

#[test]
fn direct_returns_are_known_by_their_clients() {
    let mut rows = rows();
    for (sport, tcp_flags) in [(4000, SYN), (4001, SYN | ACK), (4002, SYN | ACK | FIN)] {
        let original = Tuple { src: CLIENT, dst: NODE, sport, dport: 30080, proto: proto::TCP };
        let mut entry =
            CtEntry { service: 1, backend: 8, role: Role::DSR.0, tcp_flags, ..CtEntry::default() };
        entry.set_target(&Tuple { dst: FAR, dport: 8080, ..original });
        rows.conntrack.insert(CtKey::new(&original, INGRESS), entry);
    }
    let mut views = conn::connections(&rows, &names(), &at(0));
    conn::sort(&mut views);
    let states: Vec<_> = views.iter().map(|view| view.state).collect();
    assert_eq!(states, [TcpState::SynSent, TcpState::Established, TcpState::Closed].map(Some));
    assert!(views.iter().all(|view| view.direct_return && view.snat.is_none()));
    assert_eq!(views[0].backend.unwrap().to_string(), "10.0.1.6:8080");
    assert!(connections(&views).contains("dsr"));
    let frontends = service::frontends(&rows, &names());
    assert_eq!(frontends.iter().map(|view| view.counts.unwrap().connections).sum::<u64>(), 2);
}

#[test]
fn a_connection_without_masquerade_shows_none() {
    let mut rows = rows();
    let original = Tuple { src: POD, dst: VIP, sport: 4000, dport: 80, proto: proto::TCP };
    let entry = CtEntry {
        service: 3,
        backend: 8,
        src: POD,
        dst: FAR,
        sport: 4000,
        dport: 8080,
        ..CtEntry::default()
    };
    rows.conntrack.insert(CtKey::new(&original, INGRESS), entry);
    let views = conn::connections(&rows, &names(), &at(0));
    assert_eq!((views[0].snat, views[0].service.as_str()), (None, "?(3)"));
}

#[test]
fn broken_rows_are_shown_and_nothing_panics() {
    let mut rows = rows();
    rows.frontends[0].1.cluster = SlotRange { offset: 0, len: u32::MAX };
    rows.frontends[0].1.kind = 77;
    rows.frontends[0].1.service = 5;
    let views = service::frontends(&rows, &names());
    assert_eq!((views[0].kind, views[0].service.as_str()), ("Unknown", "?(5)"));
    let addresses: Vec<_> = views[0].backends.iter().map(|b| b.address.as_str()).collect();
    assert_eq!(addresses, ["?(99)", "10.0.0.5:8080", "10.0.1.6:8080"]);
}

#[test]
fn tables_read_well() {
    let mut rows = rows();
    connect(&mut rows, 4000, SYN | ACK, SYN | ACK);
    let mut views = service::frontends(&rows, &names());
    service::sort(&mut views);
    assert_eq!(
        services(&views, false),
        "\
SERVICE           KIND       FRONTEND      PROTO  POLICY   BACKENDS         CONNECTIONS
default/web:http  ClusterIP  10.96.0.1:80  TCP    Cluster  10.0.0.5:8080 *  0
                                                           10.0.1.6:8080
default/web:http  NodePort   *:30080       TCP    Local    10.0.0.5:8080 *  1
                                                           10.0.1.6:8080"
    );
    let wide = services(&views, true);
    assert!(wide.contains("10.0.0.5:8080 * (1/0)") && wide.contains("local,drop"), "{wide}");
    let conns = connections(&conn::connections(&rows, &names(), &at(8_000_000_000)));
    assert_eq!(
        conns,
        "\
SERVICE           PROTO  CLIENT            FRONTEND           BACKEND        SNAT              STATE        IDLE  EXPIRES
default/web:http  TCP    203.0.113.9:4000  192.168.0.2:30080  10.0.0.5:8080  192.168.0.2:4001  ESTABLISHED  3s    23h59m"
    );
    let numeric = Names::new(HashMap::from([(1, "default/web".to_owned())]), true);
    assert_eq!(numeric.of(1), "#1");
}

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
    for line in [
        "shunt agent --manifests m --hostname-override n --bpffs b --cgroup c --config f --socket-lb host \
         --log-format json --log-level debug --datapath-log-level trace",
        "shunt cleanup --bpffs b",
        "shunt service list -o wide -n --kind clusterip --without-backends",
        "shunt backend list --state draining --local -o yaml --no-headers",
        "shunt conn list -o json --state ESTABLISHED --sort idle",
        "shunt affinity list --valid --address 10.0.0.0/8",
        "shunt device list --kind node --interface eth0",
        "shunt drop list --all --sort count --reverse",
        "shunt drop list --by service --reason unknown-port",
        "shunt stats --rate --interval 0.5 --sort cps",
        "shunt top --batch 2 --tab drops --sort count",
        "shunt verify --manifests m --hostname-override n --config f --wait 0 -o json",
        "shunt plan --kubeconfig k --changes --service a/b -o yaml",
        "shunt completions zsh",
        "shunt man --dir d",
    ] {
        Cli::try_parse_from(line.split_whitespace()).unwrap();
    }
    for line in [
        "shunt agent --manifests m --kubeconfig k",
        "shunt conn list --sort meaning",
        "shunt verify --manifests m --kubeconfig k",
        "shunt conn list --numeric --service a/b",
        "shunt service list --address 10.0.0",
        "shunt agent --socket-lb some",
    ] {
        assert!(Cli::try_parse_from(line.split_whitespace()).is_err(), "{line}");
    }
}

#[test]
fn backends_with_their_users_and_state() {
    let mut rows = rows();
    connect(&mut rows, 4000, SYN | ACK, SYN | ACK);
    let gone = Backend { addr: Ip4 { octets: [10, 0, 1, 7] }, port: 53, ..rows.backends[&8] };
    rows.backends.insert(9, gone);
    let tuple = Tuple { src: POD, dst: VIP, sport: 4000, dport: 53, proto: proto::UDP };
    let mut flow = CtEntry { service: 2, backend: 9, ..CtEntry::default() };
    flow.set_target(&Tuple { dst: gone.addr, ..tuple });
    rows.conntrack.insert(CtKey::new(&tuple, INGRESS), flow);
    let shown = backends::backends(&rows, &names());
    let text = table(&shown, backends::BackendRowView::COLUMNS, false, true);
    assert_eq!(
        text,
        "\
ID  ADDRESS        PROTO  LOCAL  STATE     CONNECTIONS  OPENED  SERVICES
7   10.0.0.5:8080  TCP    yes    in-use    1            0       default/web:http
8   10.0.1.6:8080  TCP    no     in-use    0            0       default/web:http
9   10.0.1.7:53    TCP    no     draining  1            0       ?(2)"
    );
}

#[test]
fn clients_stick_for_as_long_as_their_backend_is_a_candidate() {
    let mut rows = rows();
    let client = |last, backend, last_used| {
        let key = AffinityKey { client: Ip4 { octets: [203, 0, 113, last] }, service: 1 };
        (key, Affinity { last_used, backend, slot: 0 })
    };
    // The NodePort has 60 seconds; backend 9 is nobody's.
    let second = 1_000_000_000;
    rows.affinity = vec![client(1, 7, 90 * second), client(2, 7, 30 * second), client(3, 9, 90 * second)];
    let views = affinity::clients(&rows, &names(), 100 * second);
    let text = table(&views, affinity::AffinityView::COLUMNS, false, false);
    assert_eq!(
        text,
        "\
default/web:http  203.0.113.1  10.0.0.5:8080  10s    50s
default/web:http  203.0.113.2  10.0.0.5:8080  1m10s  -
default/web:http  203.0.113.3  -              10s    -"
    );
}

/// The rows that a line of flags leaves, by the column BACKEND.
fn chosen(flags: &str) -> Vec<String> {
    let mut rows = rows();
    connect(&mut rows, 4000, SYN | ACK, SYN | ACK);
    connect(&mut rows, 5000, SYN, 0);
    let views = conn::connections(&rows, &names(), &at(8_000_000_000));
    let line = format!("shunt conn list -o json {flags}");
    let Command::Conn(ConnCommand::List(args)) =
        Cli::try_parse_from(line.split_whitespace()).expect(flags).command
    else {
        panic!("not the list: {line}")
    };
    let shown: Vec<serde_json::Value> =
        serde_json::from_str(&list::show(&args.show, views).expect("JSON")).expect("JSON");
    shown.iter().map(|row| row["client"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn flags_choose_and_sort_rows() {
    let (first, second) = ("203.0.113.9:4000", "203.0.113.9:5000");
    assert_eq!(chosen("--service default/web --state syn_sent"), [second]);
    assert_eq!(chosen("--address 203.0.113.0/24 --sort client"), [first, second]);
    assert_eq!(chosen("--port 8080 --protocol TCP --sort client --reverse"), [second, first]);
    assert_eq!(chosen("--port 4001 --snat"), [first], "the port that the backend sees");
    assert!(chosen("--family ipv6").is_empty() && chosen("--namespace kube-system").is_empty());
}

/// The commands that do something, with their names.
fn leaves(command: &clap::Command, name: &str, found: &mut Vec<(String, String)>) {
    if command.get_subcommands().next().is_none() {
        found.push((name.to_owned(), command.clone().render_long_help().to_string()));
    }
    for child in command.get_subcommands() {
        leaves(child, &format!("{name} {}", child.get_name()), found);
    }
}

#[test]
fn every_command_is_explained_by_examples_that_it_understands() {
    let mut found = Vec::new();
    leaves(&Cli::command(), "shunt", &mut found);
    assert!(found.len() > 10, "{found:?}");
    for (name, help) in found {
        let (_, examples) =
            help.split_once("Examples:").unwrap_or_else(|| panic!("{name} has none:\n{help}"));
        let lines = examples.lines().map(str::trim).filter(|line| line.starts_with(&name));
        let lines: Vec<_> = lines.collect();
        assert!(!lines.is_empty(), "{name}: {examples}");
        for line in lines {
            let own = line
                .split("  ")
                .next()
                .unwrap_or_default()
                .split(['|', '>'])
                .next()
                .unwrap_or_default()
                .replace('"', "");
            let parsed = Cli::try_parse_from(own.split_whitespace());
            assert!(parsed.is_ok(), "{line}: {}", parsed.err().map(|e| e.to_string()).unwrap_or_default());
        }
    }
}
