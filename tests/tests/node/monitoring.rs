//! Dashboard, alerts and PodMonitor ask for what a running agent shows: names, labels, and
//! values of labels that are known beforehand.

use crate::{
    http::{METRICS, get},
    metrics::{lively, scrape},
};
use anyhow::{Context, Result, bail, ensure};
use promql_parser::{
    label::{MatchOp, Matcher},
    parser::{self, Expr, VectorSelector},
    util::{ExprVisitor, walk_expr},
};
use proxy_common::DropReason;
use proxy_userspace::{
    agent::reference,
    meter::{Kind, Meter},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Labels that the scraper adds to every series.
const OF_THE_TARGET: [&str; 4] = ["node", "job", "instance", "pod"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/monitoring")
}

fn yaml(name: &str) -> Result<Value> {
    let text = fs::read_to_string(folder().join(name)).with_context(|| name.to_owned())?;
    serde_norway::from_str(&text).with_context(|| name.to_owned())
}

fn dashboard() -> Result<Value> {
    Ok(serde_json::from_str(&fs::read_to_string(folder().join("shunt-dashboard.json"))?)?)
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str> {
    value[field].as_str().with_context(|| format!("no {field} in {value}"))
}

fn alerts() -> Result<Vec<Value>> {
    let file = yaml("shunt-rules.yaml")?;
    ensure!(file["kind"] == "PrometheusRule", "{file}");
    let groups = file["spec"]["groups"].as_array().context("groups")?;
    Ok(groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten()).cloned().collect())
}

/// Every query, with where it stands. Variables of the dashboard stand for anything.
fn queries() -> Result<Vec<(String, String)>> {
    let mut queries = Vec::new();
    for alert in alerts()? {
        queries.push((text(&alert, "alert")?.to_owned(), text(&alert, "expr")?.to_owned()));
    }
    let dashboard = dashboard()?;
    for panel in dashboard["panels"].as_array().context("panels")? {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push((text(panel, "title")?.to_owned(), text(target, "expr")?.to_owned()));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().context("variables")? {
        let Some(inner) = variable["definition"].as_str() else { continue };
        let inner = inner.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (selector, label) = inner.and_then(|inner| inner.rsplit_once(", ")).context("label_values")?;
        queries.push((text(variable, "name")?.to_owned(), format!("count by ({label}) ({selector})")));
    }
    let variables = ["node", "namespace", "service"];
    for (_, query) in &mut queries {
        variables.iter().for_each(|name| *query = query.replace(&format!("${name}"), ".*"));
    }
    Ok(queries)
}

/// The selectors of a query, and the labels it groups or joins by.
#[derive(Default)]
struct Asked {
    selectors: Vec<VectorSelector>,
    grouping: BTreeSet<String>,
}

impl ExprVisitor for Asked {
    type Error = anyhow::Error;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool> {
        match expr {
            Expr::VectorSelector(selector) => self.selectors.push(selector.clone()),
            Expr::MatrixSelector(selector) => self.selectors.push(selector.vs.clone()),
            Expr::Aggregate(aggregate) => {
                self.grouping.extend(aggregate.modifier.iter().flat_map(|by| by.labels().labels.clone()));
            }
            _ => {}
        }
        Ok(true)
    }
}

fn asked(query: &str) -> Result<Asked> {
    let expr = parser::parse(query).map_err(|error| anyhow::anyhow!("{query}: {error}"))?;
    let mut asked = Asked::default();
    walk_expr(&mut asked, &expr)?;
    ensure!(!asked.selectors.is_empty(), "{query} asks for nothing");
    Ok(asked)
}

/// The metric that a selector is about, and whether it wants the buckets of a histogram.
fn meter(name: &str) -> Option<(Meter, bool)> {
    let all = || reference().into_iter().flat_map(|(_, meters)| meters);
    let exact = all().find(|meter| meter.name == name && meter.kind != Kind::Histogram);
    let bucket = name.strip_suffix("_bucket");
    let histogram = all().find(|meter| meter.kind == Kind::Histogram && Some(meter.name) == bucket);
    exact.map(|meter| (meter, false)).or(histogram.map(|meter| (meter, true)))
}

fn fits(matcher: &Matcher, value: &str) -> bool {
    match &matcher.op {
        MatchOp::Equal => matcher.value == value,
        MatchOp::NotEqual => matcher.value != value,
        MatchOp::Re(pattern) => pattern.is_match(value),
        MatchOp::NotRe(pattern) => !pattern.is_match(value),
    }
}

/// Values that a label can have, where they are known beforehand.
fn known_values(label: &str) -> Option<Vec<&'static str>> {
    Some(match label {
        "reason" => DropReason::ALL.iter().map(|reason| reason.name()).collect(),
        "direction" => vec!["in", "out", "ingress", "egress", "xdp"],
        "code" => vec!["200", "503"],
        _ => return None,
    })
}

#[test]
fn queries_ask_for_what_a_running_agent_shows() -> Result<()> {
    let cluster = lively()?;
    let shown = scrape(&cluster.nodes[0], "/metrics")?.1;
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for sample in &shown.samples {
        labels.entry(sample.metric.clone()).or_default().extend(sample.labels.keys().cloned());
    }
    let text = get(&cluster.nodes[0], METRICS, "/metrics")?.text()?.to_owned();
    for (place, query) in queries()? {
        let asked = asked(&query).with_context(|| place.clone())?;
        let mut possible: BTreeSet<&str> = OF_THE_TARGET.into();
        for selector in &asked.selectors {
            let name = selector.name.as_deref().with_context(|| format!("{place}: no name in {query}"))?;
            if name == "up" {
                continue;
            }
            let Some((meter, buckets)) = meter(name) else { bail!("{place}: there is no {name}") };
            ensure!(text.contains(&format!("# TYPE {} ", meter.name)), "{place}: {name} is not shown");
            possible.extend(meter.labels);
            possible.extend(buckets.then_some("le"));
            for matcher in &selector.matchers.matchers {
                let own = meter.labels.contains(&matcher.name.as_str());
                let known = own || OF_THE_TARGET.contains(&matcher.name.as_str());
                ensure!(known, "{place}: {name} has no label {}", matcher.name);
                let values = known_values(&matcher.name).filter(|_| own).unwrap_or_default();
                let met = values.is_empty() || values.iter().any(|value| fits(matcher, value));
                ensure!(met, "{place}: {name} never has {}={:?}", matcher.name, matcher.value);
                // Each branch of an alternative is one that exists.
                for branch in matcher.value.split('|').filter(|_| !values.is_empty()) {
                    ensure!(values.contains(&branch), "{place}: there is no {}={branch:?}", matcher.name);
                }
            }
        }
        let strange: Vec<_> = asked.grouping.iter().filter(|l| !possible.contains(l.as_str())).collect();
        ensure!(strange.is_empty(), "{place}: nothing has {strange:?} in {query}");
    }
    Ok(())
}

#[test]
fn every_alert_has_a_section_that_says_what_to_do() -> Result<()> {
    let document = fs::read_to_string(folder().join("../../docs/alerts.md"))?;
    let sections: BTreeSet<_> = document.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let alerts = alerts()?;
    let names = alerts.iter().map(|alert| text(alert, "alert")).collect::<Result<BTreeSet<_>>>()?;
    assert_eq!(sections, names);
    for alert in &alerts {
        let name = text(alert, "alert")?;
        assert_eq!(
            text(&alert["annotations"], "runbook")?,
            format!("docs/alerts.md#{}", name.to_lowercase())
        );
        assert!(document.contains(text(alert, "expr")?), "{name}: another expression in docs/alerts.md");
        assert!(["critical", "warning", "info"].contains(&text(&alert["labels"], "severity")?), "{name}");
        assert!(!text(&alert["annotations"], "summary")?.is_empty(), "{name}");
    }
    Ok(())
}

#[test]
fn the_pod_monitor_keeps_our_labels() -> Result<()> {
    let monitor = yaml("podmonitor.yaml")?;
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!((&endpoint["honorLabels"], &endpoint["path"]), (&true.into(), &"/metrics".into()));
    assert_eq!(endpoint["relabelings"][0]["targetLabel"], "node");
    Ok(())
}
