//! What a contender keeps of connections, on the first node.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context as _, Result};
use aya::maps::loaded_maps;

use super::results::Connections;
use crate::{
    bench::{contender::Contender, field::Field, proc},
    late,
    netns::Namespace,
};

/// Maps whose memory depends on connections, without the family; the kernel keeps 15 letters of a name.
const MAPS: [&str; 4] = ["conntrack", "transient", "turns", "held_ports"];
/// Where the agent tells its metrics.
const METRICS: (&str, u16) = ("127.0.0.1", 10249);
/// A flood leaves the agent little time.
const PATIENCE: Duration = Duration::from_secs(20);
const MIB: f64 = 1_048_576.0;

/// What there is now; `direct` keeps nothing.
pub(super) fn connections(field: &Field) -> Result<Option<Connections>> {
    let node = &field.cluster().nodes[0];
    match field.contender() {
        Contender::Direct => Ok(None),
        contender if contender.is_shunt() => {
            let mib = Some(memory(node.agent.process_id()?)? as f64 / MIB);
            let (count, most) = rows(&node.host.netns)?;
            Ok(Some(Connections { count, most, mib }))
        }
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

/// Rows that there are, and that there is room for, as of the agent's last sweep. Before the first there are
/// none to tell.
fn rows(netns: &Namespace) -> Result<(u64, u64)> {
    late::until(PATIENCE, || {
        let page = metrics(netns)?;
        let number = |name: &str| {
            let series = format!(r#"{name}{{map="conntrack",ip_family="IPv4"}}"#);
            gauge(&page, &series).with_context(|| late!("no {series} in\n{page}"))
        };
        Ok((number("shunt_map_rows")?, number("shunt_map_capacity")?))
    })
}

/// Bytes of these maps, which the process holds.
fn memory(process: u32) -> Result<u64> {
    let names: BTreeMap<u32, String> = loaded_maps()
        // Others come and go meanwhile.
        .filter_map(|info| {
            info.ok().map(|info| (info.id(), info.name_as_str().unwrap_or_default().to_lowercase()))
        })
        .collect();
    let counts = |id: &u32| names.get(id).is_some_and(|name| MAPS.iter().any(|map| name.starts_with(map)));
    Ok(proc::maps(process)?.iter().filter(|(id, _)| counts(id)).map(|(_, bytes)| bytes).sum())
}

/// The agent's page.
fn metrics(netns: &Namespace) -> Result<String> {
    netns.run(|| {
        let mut stream = TcpStream::connect(METRICS).context("connect to the agent's metrics")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page).context("read the agent's metrics")?;
        Ok(page)
    })
}

/// The value of a series.
fn gauge(page: &str, series: &str) -> Option<u64> {
    page.lines()
        .find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok())
        .map(|value| value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_found_among_others() {
        let page = "HTTP/1.1 200 OK\r\n\r\na{map=\"x\"} 1\na{map=\"y\"} 262144\n";
        assert_eq!(gauge(page, "a{map=\"y\"}"), Some(262_144));
        assert_eq!(gauge(page, "a{map=\"z\"}"), None);
    }
}
