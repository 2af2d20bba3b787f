//! What a scraper gets.

use crate::{
    http::{METRICS, ask, get},
    world::{Open, answer, is_served, soon, two_nodes},
    xdp,
};
use anyhow::{Context, Result, bail, ensure};
use prometheus_parse::{Sample, Scrape, Value};
use proxy_userspace::{
    agent::reference,
    meter::{Kind, Meter},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};
use tests::{
    agent::{Agent, SocketLb},
    late, manifests,
    metrics::lacks,
    probe::{Bulk, Proto},
    topology::cluster::{
        Cluster, Node,
        Origin::{Client, Pod},
    },
};

/// Waits for a line of `/metrics` that begins so.
pub(crate) fn wait_for(node: &Node, line: &str) -> Result<()> {
    soon(|| {
        let answer = get(node, METRICS, "/metrics")?;
        let text = answer.text()?;
        ensure!(text.lines().any(|other| other.starts_with(line)), lacks(text, line));
        Ok(())
    })
}

/// Everything at a path, as an independent reader of the text format takes it.
pub(crate) fn scrape(node: &Node, path: &str) -> Result<(String, Scrape)> {
    let text = get(node, METRICS, path)?.text()?.to_owned();
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned())))?;
    Ok((text, scrape))
}

/// A gauge with these labels and no others.
pub(crate) fn gauge(node: &Node, metric: &str, labels: &[(&str, &str)]) -> Result<f64> {
    let (text, scrape) = scrape(node, "/metrics")?;
    let has = |sample: &Sample| labels.iter().all(|(label, value)| sample.labels.get(label) == Some(value));
    let is_it =
        |sample: &&Sample| sample.metric == metric && sample.labels.len() == labels.len() && has(sample);
    match scrape.samples.iter().find(is_it).map(|sample| &sample.value) {
        Some(Value::Gauge(value)) => Ok(*value),
        _ => bail!(late!("no {metric} of {labels:?} in\n{text}")),
    }
}

fn value(sample: &Sample) -> f64 {
    match &sample.value {
        Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => *value,
        Value::Histogram(buckets) => buckets.last().map_or(0.0, |bucket| bucket.count),
        Value::Summary(_) => f64::NAN,
    }
}

/// The sum of all series of a name that have these labels.
fn sum(node: &Node, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
    let (_, scrape) = scrape(node, "/metrics")?;
    let fits = |sample: &&Sample| {
        sample.metric == name && labels.iter().all(|(name, value)| sample.labels.get(name) == Some(value))
    };
    Ok(scrape.samples.iter().filter(fits).map(value).sum())
}

/// What a counter shows is late below the wanted values; beyond them, it never comes back.
fn counts_into(what: &str, found: f64, wanted: RangeInclusive<f64>) -> Result<()> {
    ensure!(found <= *wanted.end(), "{found} {what}, {wanted:?} wanted");
    ensure!(found >= *wanted.start(), late!("{found} {what}, {wanted:?} wanted"));
    Ok(())
}

fn counts_to(what: &str, found: f64, wanted: f64) -> Result<()> {
    counts_into(what, found, wanted..=wanted)
}

#[test]
fn refusals_levels_and_sources_are_counted() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let node = &cluster.nodes[0];
    wait_for(node, r#"shunt_drops_total{reason="unknown-port"} 0"#)?;
    assert!(!is_served(&cluster, Pod(0, 1), "10.96.0.20:999")?);
    wait_for(node, r#"shunt_drops_total{reason="unknown-port"} 1"#)?;
    wait_for(node, r#"shunt_map_capacity{map="frontends",ip_family="IPv4"} 1024"#)?;
    wait_for(node, r#"shunt_rejected_objects_total{kind="Service"} 0"#)?;
    wait_for(node, r#"shunt_watched_objects{kind="Service"} "#)?;
    wait_for(node, r#"shunt_xdp_mode{interface="eth0",configured="off",mode="none",reason=""} 1"#)?;
    Ok(())
}

#[test]
fn xdp_modes_have_their_reason() -> Result<()> {
    let cluster = xdp::with_links_of_every_kind("native")?;
    let node = &cluster.nodes[0];
    wait_for(node, r#"shunt_xdp_mode{interface="eth0",configured="native",mode="native",reason=""} 1"#)?;
    wait_for(
        node,
        r#"shunt_xdp_mode{interface="xbridge",configured="native",mode="none",reason="the kernel says: "#,
    )
}

/// A cluster that has seen a little of everything.
pub(crate) fn lively() -> Result<Cluster> {
    let cluster = two_nodes(SocketLb::Off)?;
    for (from, to) in
        [(Pod(0, 1), "10.96.0.10:90"), (Client, "192.168.50.11:30090"), (Client, "192.168.50.11:30190")]
    {
        answer(&cluster, from, Proto::Tcp, to)?;
    }
    // It stays open, and holds a source port.
    Open::new(&cluster, Client, "192.168.50.11:30090")?;
    assert!(!is_served(&cluster, Pod(0, 1), "10.96.0.20:999")?);
    wait_for(&cluster.nodes[0], r#"shunt_drops_total{reason="unknown-port"} 1"#)?;
    get(&cluster.nodes[0], crate::http::HEALTH, "/healthz")?;
    get(&cluster.nodes[0], crate::http::HEALTH, "/livez")?;
    // After the next sweep the levels are there, too.
    wait_for(&cluster.nodes[0], "shunt_snat_ports_in_use{")?;
    Ok(cluster)
}

/// Types by name, as `# TYPE` announces them.
fn types(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect()
}

#[test]
fn the_reference_is_what_a_running_agent_shows() -> Result<()> {
    let cluster = lively()?;
    let mut known = BTreeSet::new();
    let mut series = BTreeSet::new();
    let everything: Vec<Meter> = reference().into_iter().flat_map(|(_, meters)| meters).collect();
    for path in ["/metrics", "/metrics/slis"] {
        let (text, scrape) = scrape(&cluster.nodes[0], path)?;
        for (name, kind) in types(&text) {
            let meter = everything.iter().find(|meter| meter.name == name);
            let meter = meter.with_context(|| format!("{name} is in no table"))?;
            ensure!(meter.kind.name() == kind, "{name} is a {kind}");
            known.insert(meter.name);
        }
        for sample in &scrape.samples {
            let name = sample.metric.trim_end_matches("_sum").trim_end_matches("_count");
            let meter = everything.iter().find(|meter| [name, &sample.metric].contains(&meter.name));
            let meter = meter.with_context(|| format!("{} was not announced", sample.metric))?;
            let labels: BTreeSet<&str> = sample.labels.keys().map(String::as_str).collect();
            ensure!(labels == meter.labels.iter().copied().collect(), "{}: {labels:?}", meter.name);
            series.insert(meter.name);
        }
    }
    let unseen: Vec<_> = everything.iter().map(|meter| meter.name).filter(|n| !known.contains(n)).collect();
    ensure!(unseen.is_empty(), "never shown: {unseen:?}");
    let expected = ["kubeproxy_proxy_healthz_total", "kubeproxy_network_programming_duration_seconds"];
    ensure!(expected.iter().all(|name| series.contains(name)), "{series:?}");
    Ok(())
}

/// kube-proxy 1.36 in nftables mode (`pkg/proxy/metrics`), as far as it has a meaning here.
const KUBE_PROXYS: [(&str, Kind, &[&str]); 15] = [
    ("kubeproxy_sync_proxy_rules_duration_seconds", Kind::Histogram, &["ip_family"]),
    ("kubeproxy_sync_full_proxy_rules_duration_seconds", Kind::Histogram, &["ip_family"]),
    ("kubeproxy_sync_partial_proxy_rules_duration_seconds", Kind::Histogram, &["ip_family"]),
    ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", Kind::Gauge, &["ip_family"]),
    ("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", Kind::Gauge, &["ip_family"]),
    ("kubeproxy_sync_proxy_rules_endpoint_changes_pending", Kind::Gauge, &[]),
    ("kubeproxy_sync_proxy_rules_endpoint_changes_total", Kind::Counter, &[]),
    ("kubeproxy_sync_proxy_rules_service_changes_pending", Kind::Gauge, &[]),
    ("kubeproxy_sync_proxy_rules_service_changes_total", Kind::Counter, &[]),
    ("kubeproxy_sync_proxy_rules_no_local_endpoints_total", Kind::Gauge, &["traffic_policy", "ip_family"]),
    ("kubeproxy_network_programming_duration_seconds", Kind::Histogram, &["ip_family"]),
    ("kubeproxy_proxy_healthz_total", Kind::Counter, &["code"]),
    ("kubeproxy_proxy_livez_total", Kind::Counter, &["code"]),
    ("kubeproxy_conntrack_reconciler_sync_duration_seconds", Kind::Histogram, &["ip_family"]),
    ("kubeproxy_conntrack_reconciler_deleted_entries_total", Kind::Counter, &["ip_family"]),
];

#[test]
fn kube_proxys_metrics_have_its_names_types_labels_and_buckets() -> Result<()> {
    let everything: Vec<Meter> = reference().into_iter().flat_map(|(_, meters)| meters).collect();
    for (name, kind, labels) in KUBE_PROXYS {
        let meter = everything.iter().find(|meter| meter.name == name).context(name)?;
        assert_eq!((meter.kind, meter.labels), (kind, labels), "{name}");
    }
    let cluster = two_nodes(SocketLb::Off)?;
    let (text, scrape) = scrape(&cluster.nodes[0], "/metrics")?;
    for (name, kind, _) in KUBE_PROXYS {
        assert_eq!(types(&text).get(name), Some(&kind.name()), "{name}");
    }
    let bounds = |name: &str| -> Vec<f64> {
        let sample = scrape.samples.iter().find(|sample| sample.metric == name);
        match sample.map(|sample| &sample.value) {
            Some(Value::Histogram(buckets)) => buckets.iter().map(|bucket| bucket.less_than).collect(),
            _ => Vec::new(),
        }
    };
    let mut doubling: Vec<f64> = (0..15).map(|power| 0.001 * 2_f64.powi(power)).collect();
    doubling.push(f64::INFINITY);
    assert_eq!(bounds("kubeproxy_sync_proxy_rules_duration_seconds"), doubling);
    let programming = bounds("kubeproxy_network_programming_duration_seconds");
    assert_eq!((programming.len(), &programming[..4]), (81, &[0.25, 0.5, 1.0, 2.0][..]));
    Ok(())
}

#[test]
fn changes_and_rounds_are_counted() -> Result<()> {
    let mut cluster = two_nodes(SocketLb::Off)?;
    // "local" has its only endpoint on the first node.
    let no_local = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    let external = [("traffic_policy", "external"), ("ip_family", "IPv4")];
    assert_eq!(sum(&cluster.nodes[0], no_local, &external)?, 0.0);
    assert_eq!(sum(&cluster.nodes[1], no_local, &external)?, 1.0);
    let changes = "kubeproxy_sync_proxy_rules_endpoint_changes_total";
    let rounds = "kubeproxy_sync_partial_proxy_rules_duration_seconds";
    let before = (sum(&cluster.nodes[0], changes, &[])?, sum(&cluster.nodes[0], rounds, &[])?);
    let mut objects = manifests::two_nodes()?;
    manifests::find(&mut objects, "EndpointSlice", "one-4")?["endpoints"] = json!([]);
    let node = &mut cluster.nodes[0];
    node.agent.write(&objects)?;
    node.agent.wait_in_sync()?;
    let node = &cluster.nodes[0];
    soon(|| {
        let after = (sum(node, changes, &[])?, sum(node, rounds, &[])?);
        counts_to("changes", after.0, before.0 + 1.0)?;
        // Both families count each round.
        counts_to("rounds", after.1, before.1 + 2.0)
    })?;
    assert_eq!(sum(node, "kubeproxy_sync_proxy_rules_endpoint_changes_pending", &[])?, 0.0);
    assert_eq!(sum(node, "shunt_event_to_map_duration_seconds", &[])?, 1.0);
    let queued = sum(node, "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", &[])?;
    assert!(sum(node, "kubeproxy_sync_proxy_rules_last_timestamp_seconds", &[])? >= queued);
    Ok(())
}

#[test]
fn what_services_and_backends_serve_is_counted() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let node = &cluster.nodes[0];
    let open = Open::new(&cluster, Client, "192.168.50.11:30190")?;
    open.send(Bulk { up: 100_000, down: 200_000 })?;
    for _ in 0..3 {
        answer(&cluster, Pod(0, 1), Proto::Tcp, "10.96.0.20:90")?;
    }
    assert!(!is_served(&cluster, Pod(0, 1), "10.96.0.40:80")?);
    let line = [("namespace", "demo"), ("service", "one"), ("port", "line"), ("protocol", "TCP")];
    let with = |name: &str, more: &[(&str, &str)]| sum(node, name, &[&line, more].concat());
    let by_kind = |name: &str, kind, more: &[(&str, &str)]| with(name, &[&[("kind", kind)], more].concat());
    soon(|| {
        let connections = |kind| by_kind("shunt_service_connections_total", kind, &[]);
        counts_to("connections to the NodePort", connections("NodePort")?, 1.0)?;
        counts_to("connections to the ClusterIP", connections("ClusterIP")?, 3.0)?;
        let open = by_kind("shunt_service_connections_open", "NodePort", &[])?;
        ensure!(open == 1.0, late!("{open} open"));
        let bytes = |direction| by_kind("shunt_service_bytes_total", "NodePort", &[("direction", direction)]);
        // Headers and handshakes come on top, and are less than a fifth.
        counts_into("bytes in", bytes("in")?, 100_000.0..=120_000.0)?;
        counts_into("bytes out", bytes("out")?, 200_000.0..=240_000.0)?;
        let backend = [("backend", "10.244.1.10:9090")];
        counts_to("connections to the backend", with("shunt_backend_connections_total", &backend)?, 4.0)?;
        let packets = with("shunt_backend_packets_total", &[backend[0], ("direction", "in")])?;
        counts_into("packets to the backend", packets, 11.0..=f64::INFINITY)
    })?;
    let refused = [("namespace", "demo"), ("service", "nobody")];
    assert!(sum(node, "shunt_service_drops_total", &refused)? > 0.0, "{}", scrape(node, "/metrics")?.0);
    let attached = [("interface", "eth0"), ("direction", "ingress")];
    assert_eq!(sum(node, "shunt_program_attached", &attached)?, 1.0);
    Ok(())
}

#[test]
fn both_text_formats() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let with = |accept: &str| ask(&cluster.nodes[0], METRICS, "GET /metrics", &[accept], "");
    let plain = with("Accept: */*")?;
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    // As Prometheus asks.
    let open = with(
        "Accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1",
    )?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(open.header("content-type"), Some(kind));
    assert!(open.text()?.ends_with("\n# EOF\n") && !plain.text()?.contains("# EOF"));
    // Series are the same, whatever the comments say.
    let series = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
    };
    assert_eq!(series(plain.text()?), series(open.text()?));
    Ok(())
}

#[test]
fn paths_beside_the_metrics() -> Result<()> {
    let cluster = two_nodes(SocketLb::Off)?;
    let node = &cluster.nodes[0];
    let words = |path| -> Result<String> { Ok(get(node, METRICS, path)?.text()?.to_owned()) };
    assert_eq!((words("/healthz")?, words("/proxyMode")?), ("ok".into(), "shunt".into()));
    let configz: serde_json::Value = serde_json::from_str(&words("/configz")?)?;
    assert_eq!(configz["kubeproxy.config.k8s.io"]["hostnameOverride"], "node1", "{configz}");
    assert_eq!(configz["shunt.dev"]["maps"]["frontends"], 1024, "{configz}");
    for path in ["/", "/debug/pprof/profile", "/debug/flags/v"] {
        assert_eq!(get(node, METRICS, path)?.status, 404, "{path}");
    }
    Ok(())
}

#[test]
fn profiles_and_the_level_of_the_log_where_they_are_wanted() -> Result<()> {
    let shunt = Agent::small(SocketLb::Off);
    let mut cluster = Cluster::build(1, &shunt)?;
    cluster.nodes[0].agent.configure(&json!({"enableProfiling": true}), &shunt)?;
    cluster.start(&manifests::two_nodes()?)?;
    let node = &cluster.nodes[0];
    let profile = get(node, METRICS, "/debug/pprof/profile?seconds=1")?;
    assert_eq!(profile.status, 200, "{:?}", profile.text());
    // The first field of a profile is its sample type: a message, under the number 1.
    assert_eq!(profile.body.first(), Some(&0x0a));
    assert!(get(node, METRICS, "/debug/pprof/cmdline")?.text()?.contains("shunt\0agent"));
    let heap = get(node, METRICS, "/debug/pprof/heap")?;
    assert!(heap.status == 404 && heap.text()?.contains("profile?seconds=30"));
    assert_eq!(get(node, METRICS, "/debug/pprof/profile?seconds=0")?.status, 400);
    let put = |verbosity| ask(node, METRICS, "PUT /debug/flags/v", &[], verbosity);
    assert_eq!(put("6")?.status, 200);
    // A look at the connections comes every ten seconds, and is told from level debug on.
    node.agent.wait_for("the change", |line| line.message() == "the level of the log was changed")?;
    assert_eq!((put("x")?.status, get(node, METRICS, "/debug/flags/v")?.status), (400, 406));
    Ok(())
}
