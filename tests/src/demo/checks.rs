//! What the demo tries.

use super::table::Row;
use crate::{
    probe::{Answer, Outcome, Proto},
    topology::cluster::{Cluster, Origin},
};
use anyhow::{Context, Result};
use std::{collections::BTreeSet, net::IpAddr};

/// Enough connections that a choice between two backends shows both.
const SEVERAL: u32 = 40;

/// Whose address the server should see.
#[derive(Clone, Copy)]
enum Source {
    /// The client's.
    Kept,
    /// One of a node's.
    Node,
    /// Whichever.
    Any,
}

/// What should come of it.
enum Expected {
    /// Exactly these pods answer.
    Pods(&'static [&'static str], Source),
    /// At once.
    Refused,
}

struct Check {
    shows: &'static str,
    from: Origin,
    proto: Proto,
    to: &'static str,
    expected: Expected,
    /// How many of the connections go through the load balancer.
    balanced: Balanced,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Balanced {
    None,
    All,
}

const BOTH: &[&str] = &["pod1-1", "pod2-1"];
const ONE: &[&str] = &["pod1-1"];

/// Tries every way into the services of [`two_nodes`](crate::manifests::two_nodes), on a
/// cluster whose agents serve them.
pub fn all(cluster: &Cluster) -> Result<Vec<Row>> {
    cluster.balance("198.51.100.10", 30480)?;
    cluster.balance("198.51.100.20", 30580)?;
    checks().iter().map(|check| check.run(cluster).with_context(|| check.shows)).collect()
}

fn checks() -> Vec<Check> {
    use Expected::{Pods, Refused};
    use Origin::{Client, Node, Pod};
    use Proto::{Http, Udp};
    let check = |shows, from, proto, to, expected| Check {
        shows,
        from,
        proto,
        to,
        expected,
        balanced: Balanced::None,
    };
    let through_balancer = |shows, from, proto, to, expected| Check {
        shows,
        from,
        proto,
        to,
        expected,
        balanced: Balanced::All,
    };
    vec![
        check("ClusterIP, same node", Pod(0, 1), Http, "10.96.0.20:80", Pods(ONE, Source::Kept)),
        check("ClusterIP, other node", Pod(1, 1), Http, "10.96.0.20:80", Pods(ONE, Source::Kept)),
        check("ClusterIP, spread", Pod(0, 1), Http, "10.96.0.10:80", Pods(BOTH, Source::Kept)),
        check("ClusterIP from the host", Node(1), Http, "10.96.0.10:80", Pods(BOTH, Source::Node)),
        check("ClusterIP, UDP", Pod(0, 1), Udp, "10.96.0.10:53", Pods(BOTH, Source::Kept)),
        check("NodePort from outside", Client, Http, "192.168.50.11:30080", Pods(BOTH, Source::Node)),
        check("NodePort, UDP", Client, Udp, "192.168.50.12:30053", Pods(BOTH, Source::Node)),
        check("NodePort, policy Local", Client, Http, "192.168.50.11:30280", Pods(ONE, Source::Kept)),
        check("hairpin: itself by its service", Pod(0, 0), Http, "10.96.0.20:80", Pods(ONE, Source::Any)),
        check("LoadBalancer, ipMode VIP", Pod(0, 1), Http, "198.51.100.10:80", Pods(BOTH, Source::Any)),
        through_balancer(
            "LoadBalancer, ipMode Proxy",
            Pod(0, 1),
            Http,
            "198.51.100.20:80",
            Pods(BOTH, Source::Node),
        ),
        through_balancer(
            "LoadBalancer from outside",
            Client,
            Http,
            "198.51.100.10:80",
            Pods(BOTH, Source::Node),
        ),
        check("no endpoints", Pod(0, 1), Http, "10.96.0.40:80", Refused),
        check("no endpoints, UDP", Pod(1, 1), Udp, "10.96.0.40:53", Refused),
        check("no endpoints, NodePort", Client, Http, "192.168.50.12:30380", Refused),
        check("IPv6 ClusterIP", Pod(1, 1), Http, "[fd00:96::10]:80", Pods(BOTH, Source::Kept)),
        check("IPv6 ClusterIP, UDP", Pod(0, 1), Udp, "[fd00:96::10]:53", Pods(BOTH, Source::Kept)),
        check("IPv6 from the host", Node(0), Http, "[fd00:96::10]:80", Pods(BOTH, Source::Node)),
        check("IPv6 NodePort from outside", Client, Http, "[fd00:50::11]:30080", Pods(BOTH, Source::Node)),
        check("IPv6, no endpoints", Pod(0, 1), Http, "[fd00:96::40]:80", Refused),
    ]
}

impl Check {
    fn run(&self, cluster: &Cluster) -> Result<Row> {
        let to = self.to.parse()?;
        cluster.balanced()?;
        let outcomes = cluster.dial(self.from, self.proto, to, SEVERAL)?;
        let balanced = cluster.balanced()?;
        let (host, _) = cluster.host(self.from);
        let own = if to.is_ipv4() { IpAddr::V4(host.v4) } else { IpAddr::V6(host.v6) };
        let through_balancer = |count| if self.balanced == Balanced::All { count } else { 0 };
        let fits = |outcome: &Outcome| match (&self.expected, outcome) {
            (Expected::Refused, Outcome::Refused) => true,
            (Expected::Pods(pods, source), Outcome::Answered(answer)) => {
                let is_wanted = pods.contains(&answer.server.as_str());
                is_wanted && answer.peer == to && source_fits(cluster, *source, own, answer)
            }
            _ => false,
        };
        let is_missing =
            |outcome: &Outcome| *outcome == Outcome::TimedOut && matches!(self.expected, Expected::Pods(..));
        let came = outcomes.iter().filter(|outcome| !is_missing(outcome)).count();
        let all = outcomes.len();
        Ok(Row {
            holds: outcomes.iter().all(fits)
                && self.all_answered(&outcomes)
                && balanced == through_balancer(all),
            late: came < all
                && outcomes.iter().all(|outcome| fits(outcome) || is_missing(outcome))
                && (through_balancer(came)..=through_balancer(all)).contains(&balanced),
            shows: self.shows.into(),
            tried: format!("{} → {} {}", host.name, self.to, self.proto),
            expected: self.describe_expected(),
            answered: describe(&outcomes, balanced),
        })
    }

    fn all_answered(&self, outcomes: &[Outcome]) -> bool {
        match self.expected {
            Expected::Pods(pods, _) => servers(outcomes) == pods.iter().copied().collect(),
            Expected::Refused => true,
        }
    }

    fn describe_expected(&self) -> String {
        let balanced = if self.balanced == Balanced::All { ", all by the balancer" } else { "" };
        match self.expected {
            Expected::Refused => "refused at once".into(),
            Expected::Pods(pods, source) => {
                let source = match source {
                    Source::Kept => ", client's address kept",
                    Source::Node => ", seen from a node",
                    Source::Any => "",
                };
                format!("{}{source}{balanced}", pods.join(" "))
            }
        }
    }
}

fn source_fits(cluster: &Cluster, source: Source, own: IpAddr, answer: &Answer) -> bool {
    match source {
        Source::Kept => answer.saw.ip() == own,
        Source::Node => cluster.nodes.iter().any(|node| node.addresses().contains(&answer.saw.ip())),
        Source::Any => true,
    }
}

fn servers(outcomes: &[Outcome]) -> BTreeSet<&str> {
    let answers = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Answered(answer) => Some(answer.server.as_str()),
        _ => None,
    });
    answers.collect()
}

/// Each kind of outcome with its count, and an example of the addresses servers saw.
fn describe(outcomes: &[Outcome], balanced: usize) -> String {
    let mut parts = Vec::new();
    for server in servers(outcomes) {
        let of = |outcome: &&Outcome| matches!(outcome, Outcome::Answered(answer) if answer.server == server);
        let count = outcomes.iter().filter(of).count();
        parts.push(format!("{server} ×{count}"));
    }
    let saw = outcomes.iter().find_map(|outcome| match outcome {
        Outcome::Answered(answer) => Some(format!("saw {}", answer.saw.ip())),
        _ => None,
    });
    parts.extend(saw);
    let other = outcomes.iter().find(|outcome| !matches!(outcome, Outcome::Answered(_)));
    parts.extend(other.map(ToString::to_string));
    if balanced > 0 {
        parts.push(format!("balancer ×{balanced}"));
    }
    parts.join(", ")
}
