//! Flags, beside the file and without one.

use super::*;

#[test]
fn an_empty_health_address_is_the_default_in_the_file_and_off_as_a_flag() {
    let check = |field: &str, flag: Option<&str>, expected: Option<&str>| {
        let overrides = Overrides { healthz_bind_address: flag.map(str::to_owned), ..Overrides::default() };
        let config =
            Config::parse(&kube_proxy(&format!("healthzBindAddress: '{field}'")), overrides).unwrap();
        assert_eq!(config.health.map(|address| address.to_string()).as_deref(), expected, "{field} {flag:?}");
    };
    check("", None, Some("0.0.0.0:10256"));
    check("10.0.0.1", None, Some("10.0.0.1:10256"));
    check("[::1]:9", None, Some("[::1]:9"));
    check("10.0.0.1", Some(""), None);
    check("", Some("::1"), Some("[::1]:10256"));
    let overrides = Overrides { healthz_bind_address: Some("x".into()), ..Overrides::default() };
    assert!(Config::parse("", overrides).is_err());
}

#[test]
fn flags_win_over_both_documents() {
    let text = kube_proxy("hostnameOverride: a\nlogging: {format: json}")
        + "---\n"
        + &shunt("socketLB: host\nbpffs: /a\nlogging: {level: warn}");
    let config = parse(&text);
    assert_eq!((config.model.socket_lb, config.logging.format), (Sockets::Host, LogFormat::Json));
    let overrides = Overrides {
        hostname: Some("b".into()),
        bpffs: Some("/b".into()),
        socket_lb: Some(SocketLb::Off),
        log_format: Some(LogFormat::Text),
        ..Overrides::default()
    };
    let config = Config::parse(&text, overrides).unwrap();
    assert_eq!(config.node_name.as_deref(), Some("b"));
    assert_eq!(config.bpffs, Path::new("/b"));
    assert_eq!((config.model.socket_lb, config.logging.format), (Sockets::Off, LogFormat::Text));
    assert_eq!(config.logging.level, "warn");
}

fn flag(
    flag: &'static str,
    paths: &'static [&'static str],
    value: impl Into<serde_norway::Value>,
) -> FlagValue {
    FlagValue { flag, paths, value: value.into() }
}

#[test]
fn flags_of_kube_proxy_count_without_a_file_and_are_checked_like_one() {
    let flags = vec![
        flag("masquerade-all", &["iptables.masqueradeAll", "nftables.masqueradeAll"], true),
        flag("cluster-cidr", &["clusterCIDR"], "10.0.0.0/8"),
        flag("v", &["logging.verbosity"], 4),
    ];
    let overrides = Overrides { kube_proxy: flags, ..Overrides::default() };
    let config = Config::load(None, overrides.clone()).unwrap();
    assert!(config.model.masquerade_all && config.notes.iter().all(|note| note.reason == Reason::Mapped));
    assert_eq!(config.logging.level, "debug");

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), kube_proxy("mode: nftables")).unwrap();
    let config = Config::load(Some(file.path()), overrides).unwrap();
    assert!(!config.model.masquerade_all);
    assert_eq!(noted(&config), ["logging.verbosity", "--masquerade-all", "--cluster-cidr"]);
    assert_eq!(config.logging.level, "debug");

    let wrong =
        vec![flag("conntrack-min", &["conntrack.min"], -1), flag("cluster-cidr", &["clusterCIDR"], "x")];
    let overrides = Overrides { kube_proxy: wrong, ..Overrides::default() };
    let Err(ConfigError::Invalid(problems)) = Config::load(None, overrides) else {
        panic!("these are wrong")
    };
    let mut paths: Vec<_> = problems.into_iter().map(|problem| problem.path).collect();
    paths.sort();
    assert_eq!(paths, ["--cluster-cidr", "--conntrack-min"]);
}

#[test]
fn the_deprecated_ports_turn_servers_off() {
    let overrides = Overrides { healthz_port: Some(0), metrics_port: Some(9), ..Overrides::default() };
    let config = Config::parse("", overrides).unwrap();
    assert_eq!((config.health, config.metrics.map(|a| a.port())), (None, Some(10249)));
    let overrides = Overrides {
        healthz_port: Some(9),
        healthz_bind_address: Some("10.0.0.1".into()),
        ..Overrides::default()
    };
    assert_eq!(Config::parse("", overrides).unwrap().health, "10.0.0.1:9".parse().ok());
}
