use ipnet::IpNet;

use super::*;
use crate::model::{Algorithm, DetectLocal, LoadBalancer, Mode, NodePortAddresses, SocketLb as Sockets};

fn kube_proxy(fields: &str) -> String {
    format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{fields}\n")
}

fn shunt(fields: &str) -> String {
    format!("apiVersion: shunt.dev/v1alpha1\nkind: ShuntConfiguration\n{fields}\n")
}

fn parse(text: &str) -> Config {
    Config::parse(text, Overrides::default()).unwrap()
}

/// The fields the report names, sorted.
fn wrong(text: &str) -> Vec<String> {
    match Config::parse(text, Overrides::default()) {
        Err(ConfigError::Invalid(problems)) => {
            let mut paths: Vec<_> = problems.into_iter().map(|p| p.path).collect();
            paths.sort();
            paths.dedup();
            paths
        }
        other => panic!("expected wrong fields, got {other:?}"),
    }
}

/// The fields there are notes about.
fn noted(config: &Config) -> Vec<String> {
    config.notes.iter().map(|note| note.field.clone()).collect()
}

#[test]
fn nothing_means_defaults() {
    for text in ["", "---\n", &kube_proxy(""), &shunt("")] {
        let config = parse(text);
        assert_eq!(config.model, crate::model::Config::default());
        assert_eq!(config.sync_period, Duration::from_secs(30));
        assert_eq!(config.min_sync_period, Duration::ZERO);
        assert_eq!(config.timeouts, ConntrackTimeouts::default());
        assert_eq!(config.logging.level, "info");
        assert!(noted(&config).iter().all(|field| field == "nodePortAddresses"), "{:?}", config.notes);
    }
}

#[test]
fn valid_fields_take_effect() {
    let config = parse(&kube_proxy(
        "clusterCIDR: 10.0.0.0/8,fd00:10::/32
nodePortAddresses: [192.168.0.0/24, '2001:db8::1/128']
nftables: {masqueradeAll: true, syncPeriod: 10s, minSyncPeriod: 2s}
conntrack: {udpTimeout: 10s, tcpEstablishedTimeout: 1h}
hostnameOverride: n1
clientConnection: {kubeconfig: /etc/kubeconfig}",
    ));
    let nets = |texts: [&str; 2]| Box::new(texts.map(|t| t.parse::<IpNet>().unwrap()));
    assert_eq!(config.model.detect_local, DetectLocal::ClusterCidr(nets(["10.0.0.0/8", "fd00:10::/32"])));
    let ranges = NodePortAddresses::Ranges(nets(["192.168.0.0/24", "2001:db8::1/128"]));
    assert_eq!(config.model.node_port_addresses, ranges);
    assert!(config.model.masquerade_all);
    assert_eq!(
        (config.sync_period, config.min_sync_period),
        (Duration::from_secs(10), Duration::from_secs(2))
    );
    assert_eq!(config.timeouts.udp, Duration::from_secs(10));
    assert_eq!(config.timeouts.tcp_established, Duration::from_secs(3600));
    assert_eq!(config.node_name.as_deref(), Some("n1"));
    assert_eq!(config.kubeconfig.as_deref(), Some(Path::new("/etc/kubeconfig")));
}

#[test]
fn the_load_balancer() {
    let model = |fields: &str| parse(&shunt(fields)).model.load_balancer;
    assert_eq!(model("loadBalancer: {}"), LoadBalancer { mode: Mode::Snat, algorithm: Algorithm::Random });
    assert_eq!(
        model("loadBalancer: {mode: hybrid, algorithm: maglev}"),
        LoadBalancer { mode: Mode::Hybrid, algorithm: Algorithm::Maglev }
    );
    assert_eq!(model("loadBalancer: {mode: dsr}").mode, Mode::Dsr);
    assert_eq!(wrong(&shunt("loadBalancer: {mode: DSR}")), ["loadBalancer.mode"]);
    assert_eq!(wrong(&shunt("loadBalancer: {algorithm: best}")), ["loadBalancer.algorithm"]);
    assert_eq!(wrong(&shunt("loadBalancer: {tableSize: 5}")), ["loadBalancer.tableSize"]);
}

#[test]
fn timeouts_of_ipvs_count_where_its_mode_does() {
    let seconds = |fields: &str| {
        let ConntrackTimeouts { tcp_established, tcp_close_wait, tcp_closed, udp, udp_stream } =
            parse(&kube_proxy(fields)).timeouts;
        [tcp_established, tcp_close_wait, tcp_closed, udp, udp_stream].map(|duration| duration.as_secs())
    };
    let ipvs = "ipvs: {tcpTimeout: 15m, tcpFinTimeout: 40s, udpTimeout: 5m}";
    let conntrack = "conntrack: {tcpEstablishedTimeout: 2h, tcpCloseWaitTimeout: 50s, udpTimeout: 9s, udpStreamTimeout: 99s}";
    assert_eq!(seconds(""), [86_400, 3600, 30, 30, 120]);
    assert_eq!(seconds(conntrack), [7200, 50, 30, 9, 99]);
    assert_eq!(seconds(ipvs), [900, 40, 40, 300, 300]);
    assert_eq!(seconds(&format!("mode: ipvs\n{ipvs}\n{conntrack}")), [900, 40, 40, 300, 300]);
    assert_eq!(seconds(&format!("mode: nftables\n{ipvs}\n{conntrack}")), [7200, 50, 30, 9, 99]);
    assert_eq!(seconds("mode: ipvs\nipvs: {tcpTimeout: 0s, udpTimeout: 60s}"), [86_400, 3600, 30, 60, 60]);
    assert_eq!(
        seconds("conntrack: {tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}"),
        [86_400, 3600, 30, 30, 120]
    );

    let notes = |mode: &str| noted(&parse(&kube_proxy(&format!("mode: {mode}\n{ipvs}"))));
    assert_eq!(notes("ipvs"), ["mode"]);
    assert_eq!(notes("nftables"), ["ipvs.tcpTimeout", "ipvs.tcpFinTimeout", "ipvs.udpTimeout"]);
}

#[test]
fn ports_of_masquerading_and_node_ports_are_kept_apart() {
    let config = parse(&shunt("snatPortRange: 40000-50000\nnodePortRange: 20000-29999"));
    assert_eq!((config.model.snat_port_first, config.node_port_range), (40_000, 20_000..=29_999));
    for fields in [
        "snatPortRange: 1024-30000",
        "snatPortRange: 32767-40000",
        "snatPortRange: 31000-31001",
        "nodePortRange: 20000-32767",
    ] {
        assert_eq!(wrong(&shunt(fields)), ["snatPortRange"], "{fields}");
    }
    assert_eq!(wrong(&shunt("nodePortRange: '30000'")), ["nodePortRange"]);
}

#[test]
fn further_api_servers() {
    let config =
        parse(&shunt("apiServers: ['https://10.0.0.2:6443', 'https://[fd00::2]:6443', 'http://api']"));
    assert_eq!(
        config.api_servers.iter().filter_map(http::Uri::host).collect::<Vec<_>>(),
        ["10.0.0.2", "[fd00::2]", "api"]
    );
    let fields = "apiServers: ['https://api:6443', '10.0.0.2:6443', 'ftp://api', '', 'https://']";
    assert_eq!(wrong(&shunt(fields)), [1, 2, 3, 4].map(|number| format!("apiServers[{number}]")));
}

#[test]
fn addresses_to_masquerade_behind() {
    let config = parse(&shunt("masqueradeAddresses: [192.0.2.8/29, '2001:db8::7/128']"));
    assert_eq!(config.model.masquerade_addresses.len(), 2);
    assert!(parse(&shunt("")).model.masquerade_addresses.is_empty());
    let fields = "masqueradeAddresses: [192.0.2.8/29, 192.0.2.1, 'fd00::/129']";
    assert_eq!(wrong(&shunt(fields)), ["masqueradeAddresses[1]", "masqueradeAddresses[2]"]);
}

#[test]
fn kube_proxys_rules_hold() {
    for (fields, expected) in [
        ("bindAddress: 10.10.12.11:2000", &["bindAddress"][..]),
        ("clusterCIDR: 192.168.59.0", &["clusterCIDR"]),
        ("clusterCIDR: 192.168.59.0/24,fd00:192:168::/64,10.0.0.0/16", &["clusterCIDR"]),
        ("clusterCIDR: 192.168.59.0/24,10.0.0.0/16", &["clusterCIDR"]),
        ("mode: non-existing", &["mode"]),
        ("configSyncPeriod: -1s", &["configSyncPeriod"]),
        ("iptables: {masqueradeBit: -10}", &["iptables.masqueradeBit"]),
        ("nodePortAddresses: [foo]", &["nodePortAddresses[0]"]),
        ("nodePortAddresses: [10.0.0.0/8, primary]", &["nodePortAddresses[1]"]),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {interfaceNamePrefix: eth0}",
            &["detectLocal.bridgeInterface"],
        ),
        ("detectLocalMode: InterfaceNamePrefix", &["detectLocal.interfaceNamePrefix"]),
        ("healthzBindAddress: 10.10.10.10:65536", &["healthzBindAddress"]),
        ("detectLocalMode: Guess", &["detectLocalMode"]),
        ("clientConnection: {burst: -5}", &["clientConnection.burst"]),
        ("featureGates: {NoSuchGate: true}", &["featureGates"]),
        ("nftables: {syncPeriod: 1s, minSyncPeriod: 5s}", &["nftables.minSyncPeriod"]),
        ("iptables: {syncPeriod: 1s, minSyncPeriod: 5s}", &["iptables.minSyncPeriod"]),
        ("mode: iptables\niptables: {minSyncPeriod: 31s}", &["iptables.minSyncPeriod"]),
        ("mode: nftables\nnftables: {minSyncPeriod: 31s}", &["nftables.minSyncPeriod"]),
        ("mode: ipvs\nipvs: {minSyncPeriod: 31s}", &["ipvs.minSyncPeriod"]),
        ("oomScoreAdj: 1001", &["oomScoreAdj"]),
        ("featureGates: {MultiCIDRServiceAllocator: false}", &["featureGates"]),
        ("mode: nftables\nnftables: {masqueradeBit: 32}", &["nftables.masqueradeBit"]),
        (
            "mode: ipvs\nipvs: {excludeCIDRs: [a], udpTimeout: -1s}",
            &["ipvs.excludeCIDRs[0]", "ipvs.udpTimeout"],
        ),
        (
            "logging: {format: json, verbosity: 4294967295, vmodule: [{filePattern: 'a,b', verbosity: 1}]}",
            &["logging.verbosity", "logging.vmodule", "logging.vmodule[0]"],
        ),
        ("logging: {options: {json: {splitStream: true}}}", &["logging.options.json.splitStream"]),
        ("logging: {options: {text: {infoBufferSize: 1M}}}", &["logging.options.text.infoBufferSize"]),
    ] {
        assert_eq!(wrong(&kube_proxy(fields)), expected, "{fields}");
    }
    for fields in [
        "healthzBindAddress: 0.0.0.0",
        "healthzBindAddress: ''",
        "metricsBindAddress: 127.0.0.1",
        "bindAddress: fd00:192:168:59::103\nmetricsBindAddress: '[::1]:10249'\nhealthzBindAddress: '[::]:10256'",
        "nodePortAddresses: [primary]",
        "bindAddress: ''",
        "bindAddress: 010.0.0.1\nclusterCIDR: 010.0.0.0/8",
        "featureGates: {LoggingAlphaOptions: true}\nlogging: {options: {json: {splitStream: true}}}",
        "logging: {options: {json: {infoBufferSize: '0', splitStream: false}}}",
        // Sections that are not read in the file's mode.
        "ipvs: {syncPeriod: -1s}",
        "mode: iptables\nnftables: {syncPeriod: -1s, masqueradeBit: 99}",
        "mode: nftables\niptables: {syncPeriod: -1s}",
    ] {
        parse(&kube_proxy(fields));
    }
}

/// Sections that kube-proxy does not check in a mode are not read in it: no pair of periods is in force that nobody has
/// checked.
#[test]
fn both_periods_are_of_one_section() {
    let [first, second] = ["{syncPeriod: 5s, minSyncPeriod: 2s}", "{syncPeriod: 50s, minSyncPeriod: 20s}"];
    let sections = |iptables: &str, nftables: &str, ipvs: &str| {
        let given = [("iptables", iptables), ("nftables", nftables), ("ipvs", ipvs)];
        let written = given.iter().filter(|(_, periods)| !periods.is_empty());
        written.map(|(section, periods)| format!("{section}: {periods}\n")).collect::<String>()
    };
    let min = "{minSyncPeriod: 20s}";
    for (mode, sections, expected) in [
        ("", sections(first, second, ""), [50, 20]),
        ("", sections(min, "{syncPeriod: 5s}", min), [5, 0]),
        ("", sections("{syncPeriod: 5s}", "", min), [5, 0]),
        ("", sections("", "", second), [30, 0]),
        ("iptables", sections(first, second, second), [5, 2]),
        ("nftables", sections(second, first, second), [5, 2]),
        ("ipvs", sections(second, second, first), [5, 2]),
    ] {
        let fields = format!("mode: '{mode}'\n{sections}");
        let config = parse(&kube_proxy(&fields));
        let periods = [config.sync_period, config.min_sync_period].map(|period| period.as_secs());
        assert_eq!(periods, expected, "{fields}");
    }
    let noted: Vec<_> = parse(&kube_proxy("ipvs: {syncPeriod: 5s}")).notes;
    assert_eq!(noted[0].to_string(), "ipvs.syncPeriod: is read in mode ipvs, not without a mode");
}

#[test]
fn all_wrong_fields_are_reported_together() {
    let text = kube_proxy(
        "conntrack: {maxPerCore: -1, min: -1, tcpEstablishedTimeout: -5s, udpTimeout: -5s}",
    ) + "---\n"
        + &shunt(
            "snatPortRange: 5-1\ninterfaces: {pod: ['veth[']}\nmaps: {slots: 0}\nlogging: {colour: red, level: a=b=c}",
        );
    assert_eq!(
        wrong(&text),
        [
            "conntrack.maxPerCore",
            "conntrack.min",
            "conntrack.tcpEstablishedTimeout",
            "conntrack.udpTimeout",
            "interfaces.pod[0]",
            "logging.colour",
            "logging.level",
            "maps.slots",
            "snatPortRange",
        ]
    );
}

#[test]
fn what_means_something_else_or_nothing_is_noted_and_generated_zeros_are_not() {
    let config = parse(&kube_proxy(
        "mode: ipvs
bindAddress: 0.0.0.0
configSyncPeriod: 15m0s
clientConnection: {qps: 20}
conntrack: {maxPerCore: 0, min: 10, tcpBeLiberal: true}
ipvs: {scheduler: sh, excludeCIDRs: null}
nftables: {masqueradeAll: true}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: '0'}}, verbosity: 0}
udpIdleTimeout: 250ms
featureGates: {AllAlpha: true, AllowServiceExternalIPs: false}",
    ));
    let told: Vec<_> = config.notes.iter().map(|note| (&*note.field, note.reason)).collect();
    assert_eq!(
        told,
        [
            ("featureGates.AllAlpha", Reason::NoEffect),
            ("clientConnection.qps", Reason::NoEffect),
            ("mode", Reason::Mapped),
            ("ipvs.scheduler", Reason::Mapped),
            ("nftables.masqueradeAll", Reason::OtherMode),
            ("conntrack.min", Reason::Mapped),
            ("udpIdleTimeout", Reason::Unknown),
        ]
    );
    assert!(!config.model.masquerade_all && !config.model.external_ips);
    assert_eq!(config.model.load_balancer.algorithm, Algorithm::Maglev);
    assert!(parse(&kube_proxy("mode: nftables")).notes.is_empty());
}

#[test]
fn what_kubeadm_writes_means_the_defaults() {
    let text = include_str!("tests/kubeadm.conf");
    let config = parse(text);
    let defaults = parse(&kube_proxy("clusterCIDR: 10.244.0.0/16"));
    assert_eq!((&config.model, config.timeouts), (&defaults.model, defaults.timeouts));
    assert_eq!(
        (config.sync_period, config.min_sync_period),
        (defaults.sync_period, defaults.min_sync_period)
    );
    assert_eq!((config.health, config.metrics), (defaults.health, defaults.metrics));
    assert_eq!(noted(&config), ["nodePortAddresses"]);
    assert_eq!(config.kubeconfig.as_deref(), Some(Path::new("/var/lib/kube-proxy/kubeconfig.conf")));
    let (theirs, ours) = (config.configz(), defaults.configz());
    let fields = theirs["kubeproxy.config.k8s.io"].as_object().unwrap();
    for (field, value) in fields.iter().filter(|(field, _)| *field != "clientConnection") {
        assert_eq!(value, &ours["kubeproxy.config.k8s.io"][field], "{field}");
    }
}

#[test]
fn node_ports_of_each_mode() {
    let ranges = |fields: &str| match parse(&kube_proxy(fields)).model.node_port_addresses {
        NodePortAddresses::Primary => "primary".to_owned(),
        NodePortAddresses::Ranges(nets) => nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    };
    for (fields, expected) in [
        ("", "primary"),
        ("mode: nftables", "primary"),
        ("mode: ipvs", "0.0.0.0/0 ::/0"),
        ("mode: iptables", "0.0.0.0/0 ::/0 127.0.0.0/8"),
        ("mode: iptables\niptables: {localhostNodePorts: false}", "0.0.0.0/0 ::/0"),
        ("mode: iptables\nnodePortAddresses: [primary]", "primary"),
        ("mode: iptables\nnodePortAddresses: [10.0.0.0/8]", "10.0.0.0/8"),
        ("nodePortAddresses: [0.0.0.0/0]", "0.0.0.0/0"),
        ("nodePortAddresses: [127.0.0.0/8, 10.0.0.0/8]", "127.0.0.0/8 10.0.0.0/8"),
        ("nodePortAddresses: [127.0.0.0/8]\niptables: {localhostNodePorts: false}", "0.0.0.0/32"),
        (
            "mode: nftables\nnodePortAddresses: [127.0.0.0/8]\niptables: {localhostNodePorts: false}",
            "127.0.0.0/8",
        ),
    ] {
        assert_eq!(ranges(fields), expected, "{fields}");
    }
}

#[test]
fn the_scheduler_gives_way_to_our_own_word() {
    let algorithm = |fields: &str, ours: &str| {
        parse(&(kube_proxy(fields) + "---\n" + &shunt(ours))).model.load_balancer.algorithm
    };
    assert_eq!(algorithm("ipvs: {scheduler: mh}", ""), Algorithm::Maglev);
    assert_eq!(algorithm("ipvs: {scheduler: mh}", "loadBalancer: {mode: dsr}"), Algorithm::Maglev);
    assert_eq!(algorithm("ipvs: {scheduler: mh}", "loadBalancer: {algorithm: random}"), Algorithm::Random);
    assert_eq!(algorithm("ipvs: {scheduler: wlc}", ""), Algorithm::Random);
    assert_eq!(algorithm("mode: nftables\nipvs: {scheduler: mh}", ""), Algorithm::Random);
}

#[test]
fn interface_patterns_in_their_order() {
    use interfaces::InterfaceKind;
    let config = parse(&shunt("interfaces: {ignore: ['veth-x*'], pod: ['veth*'], node: [eth0, 'en*']}"));
    for (name, kind) in [
        ("veth-x1", Some(InterfaceKind::Ignore)),
        ("veth1", Some(InterfaceKind::Pod)),
        ("eth0", Some(InterfaceKind::Node)),
        ("eth01", None),
        ("enp3s0", Some(InterfaceKind::Node)),
    ] {
        assert_eq!(config.interfaces.kind(name), kind, "{name}");
    }
}

#[test]
fn configz_has_every_default_and_flag_and_reads_back() {
    let text = kube_proxy("iptables: {syncPeriod: 0s}\nconntrack: {udpTimeout: 90s}\nbindAddress: '::'")
        + "---\n"
        + &shunt("socketLB: host\nloadBalancer: {mode: dsr}");
    let overrides = Overrides {
        hostname: Some("n1".into()),
        healthz_bind_address: Some(String::new()),
        socket_lb: Some(SocketLb::Off),
        ..Overrides::default()
    };
    let config = Config::parse(&text, overrides).unwrap();
    let shown = config.configz();
    let (theirs, ours) = (&shown["kubeproxy.config.k8s.io"], &shown["shunt.dev"]);
    for (path, expected) in [
        ("/kind", "KubeProxyConfiguration"),
        ("/apiVersion", "kubeproxy.config.k8s.io/v1alpha1"),
        ("/hostnameOverride", "n1"),
        ("/healthzBindAddress", ""),
        ("/metricsBindAddress", "[::1]:10249"),
        ("/iptables/syncPeriod", "30s"),
        ("/configSyncPeriod", "15m0s"),
        ("/conntrack/tcpEstablishedTimeout", "24h0m0s"),
        ("/conntrack/udpTimeout", "1m30s"),
    ] {
        assert_eq!(theirs.pointer(path).and_then(|v| v.as_str()), Some(expected), "{path}: {shown}");
    }
    assert_eq!((&ours["socketLB"], &ours["loadBalancer"]["mode"]), (&"off".into(), &"dsr".into()), "{shown}");
    let again = Config::parse(&config.to_yaml(), Overrides::default()).unwrap();
    assert_eq!((again.model, again.timeouts), (config.model, config.timeouts));
}

/// The conformance cases about the configuration alone.
#[test]
fn the_conformance_cases_hold() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases/config.yaml");
    let cases: Vec<serde_json::Value> =
        serde_norway::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let (name, expected) = (&case["name"], &case["expectConfig"]);
        let text = kube_proxy(&serde_norway::to_string(&case["config"]).unwrap().replace("{}", ""));
        if expected["valid"] == true {
            let _valid = parse(&text);
            continue;
        }
        let reported = wrong(&text);
        for path in expected["errors"].as_array().unwrap() {
            assert!(reported.iter().any(|p| path == p), "{name}: {path} is not in {reported:?}");
        }
    }
}

#[test]
fn off_is_a_word_and_no_boolean() {
    assert_eq!(parse(&shunt("socketLB: off\nlogging: {datapathLevel: off}")).model.socket_lb, Sockets::Off);
}

mod document;
mod flags;
