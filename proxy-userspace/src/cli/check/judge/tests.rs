use super::*;
use crate::{config::Overrides, kernel::XdpStatus};

fn facts(config: &str) -> Facts {
    let system = System {
        release: "6.12.1-x".into(),
        version: Some((6, 12)),
        btf: true,
        tcx: true,
        bpffs: true,
        cgroup: Some("/sys/fs/cgroup".into()),
    };
    let config = format!("apiVersion: shunt.dev/v1alpha1\nkind: ShuntConfiguration\n{config}\n");
    Facts {
        system,
        hooks: vec![SocketHook { hook: "sock_connect4", ours: true, others: Vec::new() }],
        kube_proxy: KubeProxy::default(),
        stack: Stack { forwards_v4: Some(true), forwards_v6: Some(true), ..Stack::default() },
        agent_runs: false,
        listeners: Vec::new(),
        shared_ports: None,
        masquerade_faults: Vec::new(),
        devices: Vec::new(),
        config: Config::parse(&config, Overrides::default()).unwrap(),
    }
}

/// Compares what is not as it should be.
fn check(facts: &Facts, expected: &[(&str, State, &str)]) {
    let found: Vec<_> = judge(facts).into_iter().filter(|f| f.state != State::Ok).collect();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, (check, state, words)) in found.iter().zip(expected) {
        assert_eq!((found.check, found.state), (*check, *state), "{found:?}");
        assert!(found.detail.contains(words), "{found:?}");
    }
}

#[test]
fn a_node_that_has_it_all() {
    check(&facts(""), &[]);
}

#[test]
fn what_the_kernel_lacks() {
    let mut old = facts("");
    old.system =
        System { version: Some((5, 15)), btf: false, bpffs: false, cgroup: None, ..old.system.clone() };
    check(
        &old,
        &[
            ("kernel", State::Error, "6.1"),
            ("BTF", State::Error, "CONFIG_DEBUG_INFO_BTF"),
            ("bpffs", State::Error, "mount"),
            ("cgroup2", State::Error, "socketLB"),
        ],
    );
    let mut without = facts("socketLB: 'off'");
    without.system.cgroup = None;
    check(&without, &[("cgroup2", State::Warning, "NodePorts")]);
}

#[test]
fn who_else_translates() {
    let mut facts = facts("");
    facts.kube_proxy.processes = vec![17];
    facts.listeners = vec![Listener { port: 10256, process: Some("kube-proxy".into()) }];
    facts.hooks[0].others = vec!["cil_sock4_connect".into()];
    check(
        &facts,
        &[
            ("kube-proxy", State::Error, "process 17"),
            ("sockets", State::Error, "Cilium"),
            ("health port", State::Error, "kube-proxy holds 10256"),
        ],
    );
    facts.shared_ports = Some(32_768..=40_000);
    facts.kube_proxy.processes.clear();
    facts.listeners = vec![Listener { port: 10256, process: Some("shunt".into()) }];
    facts.hooks[0].others = vec!["audit".into()];
    check(
        &facts,
        &[("sockets", State::Warning, "audit"), ("SNAT ports", State::Warning, "given 32768-40000 of 1024-")],
    );
    facts.shared_ports = None;
    // A CNI's own programs at devices are no rivals.
    facts.hooks[0].others.clear();
    facts.devices = vec![DevicePrograms { others: vec!["cil_from_netdev".into()], ..attached("eth0") }];
    check(&facts, &[]);
}

fn attached(interface: &str) -> DevicePrograms {
    let interface = interface.into();
    DevicePrograms { interface, ingress: Some("tcx"), egress: Some("tcx"), ..DevicePrograms::default() }
}

#[test]
fn devices_that_lack_something() {
    let mut facts = facts("");
    facts.devices = vec![DevicePrograms { egress: None, ..attached("eth0") }];
    check(&facts, &[("tc", State::Error, "eth0")]);
    let noted = |configured, mode, reason: &str| {
        Some(XdpStatus { ifindex: 2, interface: String::new(), configured, mode, reason: reason.into() })
    };
    let mut with = |configured, mode, xdp, expected: &[(&str, State, &str)]| {
        let noted = noted(configured, mode, "no driver");
        facts.devices = vec![DevicePrograms { xdp, noted, ..attached("eth0") }];
        check(&facts, expected);
    };
    with(XdpPolicy::Native, XdpMode::None, XdpMode::None, &[("XDP", State::Warning, "0 of 1")]);
    with(XdpPolicy::Auto, XdpMode::None, XdpMode::None, &[]);
    with(XdpPolicy::Auto, XdpMode::Native, XdpMode::None, &[("XDP", State::Warning, "lost")]);
    with(XdpPolicy::Auto, XdpMode::Native, XdpMode::Native, &[]);
}

#[test]
fn the_hosts_own_stack() {
    let mut facts = facts("");
    facts.stack.lacks = vec!["CAP_BPF"];
    facts.stack.forwards_v4 = Some(false);
    facts.stack.nf_conntrack = Some((80, 100));
    check(
        &facts,
        &[
            ("capabilities", State::Error, "CAP_BPF"),
            ("forwarding", State::Error, "ip_forward"),
            ("nf_conntrack", State::Warning, "80 of 100"),
        ],
    );
    facts.stack = Stack { route_localnet: Some(true), ..Stack::default() };
    check(&facts, &[("forwarding", State::Warning, "route_localnet")]);
}

#[test]
fn kube_proxy_beside_a_running_agent_is_on_its_way_out() {
    let mut facts = facts("");
    facts.kube_proxy.processes = vec![17];
    check(&facts, &[("kube-proxy", State::Error, "process 17")]);
    facts.agent_runs = true;
    check(&facts, &[("kube-proxy", State::Warning, "shunt migrate")]);
}

#[test]
fn programs_of_a_replacement_at_a_device() {
    let mut facts = facts("");
    let others = vec!["cali_tc_pre (tcx ingress)".into()];
    facts.devices = vec![DevicePrograms { interface: "eth0".into(), others, ..DevicePrograms::default() }];
    check(&facts, &[("device programs", State::Warning, "Calico")]);
}

#[test]
fn addresses_to_masquerade_behind() {
    let mut facts = facts("masqueradeAddresses: [203.0.113.0/24]");
    let is_told = |facts: &Facts| judge(facts).iter().any(|found| found.check == "masquerade addresses");
    assert!(is_told(&facts), "that all is well, too");
    facts.masquerade_faults = vec![MasqueradeFault::NoAddress { family: "IPv4" }];
    check(&facts, &[("masquerade addresses", State::Warning, "no IPv4 address of this node")]);
}
