//! What a contender keeps of connections, on the first node.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::{
    bench::{contender::Contender, field::Field},
    http::get,
    late,
    netns::Namespace,
};

/// Where the agent tells its metrics.
const METRICS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 10249));
/// A flood leaves the agent little time.
const PATIENCE: Duration = Duration::from_secs(20);
const MIB: f64 = 1_048_576.0;

/// The table of connections.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Connections {
    /// Entries that there are.
    pub count: u64,
    /// Entries that there is room for.
    pub most: u64,
    /// Memory of the maps, in MiB, if it is known.
    pub mib: Option<f64>,
}

/// What there is now; `direct` keeps nothing.
pub(super) fn connections(field: &Field) -> Result<Option<Connections>> {
    let node = &field.cluster().nodes[0];
    match field.contender() {
        Contender::Direct => Ok(None),
        contender if contender.is_shunt() => tables(&node.host.netns).map(Some),
        _ => node.host.netns.run(|| {
            let number = |name: &str| -> Result<u64> {
                let path = format!("/proc/sys/net/netfilter/{name}");
                let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
                text.trim().parse().with_context(|| format!("{path} says {text:?}"))
            };
            let (count, most) = (number("nf_conntrack_count")?, number("nf_conntrack_max")?);
            Ok(Some(Connections { count, most, mib: None }))
        }),
    }
}

/// Of shunt, as of the agent's last sweep: the IPv4 table, and the memory of those of both families. Before the
/// first sweep there is nothing to tell.
fn tables(netns: &Namespace) -> Result<Connections> {
    late::until(PATIENCE, || {
        let page = netns.run(|| get(METRICS, "/metrics"))?.context("the agent tells no metrics")?.body;
        let number = |series: &str| gauge(&page, series).with_context(|| late!("no {series} in\n{page}"));
        let table = r#"{map="conntrack",ip_family="IPv4"}"#;
        let memory = |family| number(&format!(r#"shunt_conntrack_memory_bytes{{ip_family="{family}"}}"#));
        Ok(Connections {
            count: number(&format!("shunt_map_rows{table}"))? as u64,
            most: number(&format!("shunt_map_capacity{table}"))? as u64,
            mib: Some((memory("IPv4")? + memory("IPv6")?) / MIB),
        })
    })
}

/// The value of a series.
fn gauge(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_found_among_others() {
        let page = "HTTP/1.1 200 OK\r\n\r\na{map=\"x\"} 1\na{map=\"y\"} 262144\n";
        assert_eq!(gauge(page, "a{map=\"y\"}"), Some(262_144.0));
        assert_eq!(gauge(page, "a{map=\"z\"}"), None);
    }
}
