//! `shunt affinity list`: which clients stick to which backends (`sessionAffinity: ClientIP`).

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::Result;
use clap::{Args, Subcommand};
use proxy_common::maps::netns_addresses::Netns;
use serde::Serialize;

use super::{
    ListArgs, Listed, Stored,
    column::{Column, Shown, Value},
    filter::{Facets, Where},
};
use crate::{
    cli::rows::{Names, Rows, Tables, socket},
    dataplane::MapAddr,
};

/// `shunt affinity`
#[derive(Debug, Subcommand)]
pub enum AffinityCommand {
    /// Show which clients stick to which backends.
    ///
    /// AGE is the time since the client opened its last connection, LEFT the time for which another one
    /// goes to the same backend. A row holds only while its backend takes connections for the service.
    #[command(after_help = EXAMPLES)]
    List(ListArgs<AffinityView>),
}

const EXAMPLES: &str = "Examples:
  shunt affinity list
  shunt affinity list --service shop/web
  shunt affinity list --address 203.0.113.9
  shunt affinity list --valid --sort left -o wide";

/// Which rows.
#[derive(Debug, Default, Args)]
pub struct AffinityFilter {
    /// By what all lists have.
    #[command(flatten)]
    pub at: Where,
    /// Only what the next connection would go by.
    #[arg(long, help_heading = "Filters")]
    pub valid: bool,
}

/// One client of one service port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AffinityView {
    /// The client's address; `netns:N` for the sockets of a network namespace whose address is not known.
    pub client: String,
    /// Namespace, name and port name of the service.
    pub service: String,
    /// Key in the map `services`.
    pub service_id: u32,
    /// Where it goes; none if the backend is gone.
    pub backend: Option<SocketAddr>,
    /// Key in the map of backends.
    pub backend_id: u32,
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// Seconds since the client opened its last connection.
    pub age_seconds: u64,
    /// Seconds for which the next one goes there, too; none when it does not.
    pub left_seconds: Option<u64>,
}

impl Listed for AffinityView {
    type Filter = AffinityFilter;

    const COLUMNS: &'static [Column<Self>] = &[
        Column { name: "SERVICE", shown: Shown::Always, value: |v| v.service.as_str().into() },
        Column { name: "CLIENT", shown: Shown::Always, value: client },
        Column { name: "BACKEND", shown: Shown::Always, value: |v| Value::socket(v.backend) },
        Column { name: "AGE", shown: Shown::Always, value: |v| Value::Seconds(v.age_seconds) },
        Column {
            name: "LEFT",
            shown: Shown::Always,
            value: |v| v.left_seconds.map_or(Value::None, Value::Seconds),
        },
        Column { name: "ID", shown: Shown::Wide, value: |v| u64::from(v.service_id).into() },
        Column { name: "BACKEND-ID", shown: Shown::Wide, value: |v| u64::from(v.backend_id).into() },
    ];

    fn is_wanted(&self, filter: &AffinityFilter) -> bool {
        let client: Option<IpAddr> = self.client.parse().ok();
        let facets = Facets {
            services: vec![&self.service],
            addresses: client.into_iter().chain(self.backend.map(|backend| backend.ip())).collect(),
            ports: self.backend.iter().map(SocketAddr::port).collect(),
            protocol: None,
            family: self.family,
        };
        filter.at.admits(&facets) && (!filter.valid || self.left_seconds.is_some())
    }
}

impl Stored for AffinityView {
    fn read(bpffs: &Path, filter: &AffinityFilter) -> Result<Vec<Self>> {
        let tables = Tables::read(bpffs, filter.at.numeric)?;
        let mut views = clients(&tables.v4, &tables.names, tables.now);
        views.extend(clients(&tables.v6, &tables.names, tables.now));
        views.sort_by(|a, b| (&a.service, &a.client).cmp(&(&b.service, &b.client)));
        Ok(views)
    }
}

fn client(view: &AffinityView) -> Value {
    view.client.parse().map_or_else(|_| view.client.as_str().into(), Value::Address)
}

/// The clients of a family. `now` is the clock of the rows, in nanoseconds.
pub fn clients<A: MapAddr>(rows: &Rows<A>, names: &Names, now: u64) -> Vec<AffinityView> {
    let addresses = rows.netns_addresses.iter().map(|(netns, addr)| (*netns, (*addr).into())).collect();
    let mut ports: HashMap<u32, Vec<_>> = HashMap::new();
    for (_, frontend) in rows.frontends.iter().filter(|(_, frontend)| frontend.affinity_secs > 0) {
        ports.entry(frontend.service).or_default().push(frontend);
    }
    let view = |(key, row): &(proxy_common::maps::affinity::AffinityKey<A>, _)| {
        let row: &proxy_common::maps::affinity::Affinity = row;
        let age_seconds = now.saturating_sub(row.last_used) / 1_000_000_000;
        // A candidate of any face of the service: which one the client comes by is not known.
        let frontends = ports.get(&key.service).into_iter().flatten();
        let left_seconds = frontends
            .filter(|frontend| {
                let ranges = [frontend.cluster, frontend.local];
                ranges.into_iter().flat_map(|range| rows.slots_of(range)).any(|id| id == row.backend)
            })
            .filter_map(|frontend| u64::from(frontend.affinity_secs).checked_sub(age_seconds))
            .max();
        AffinityView {
            client: name(key.client.into(), &addresses),
            service: names.of(key.service),
            service_id: key.service,
            backend: rows.backends.get(&row.backend).map(|backend| socket(backend.addr, backend.port)),
            backend_id: row.backend,
            family: A::FAMILY.name(),
            age_seconds,
            left_seconds,
        }
    };
    rows.affinity.iter().map(view).collect()
}

/// The address. Under socket LB, the client's network namespace stands for it: rows have addresses in 0.0.0.0/8
/// and ::/64, which nobody can have. `known` are those of namespaces, by cookie.
fn name(client: IpAddr, known: &HashMap<Netns, IpAddr>) -> String {
    let (cookie, known) = match client {
        // It has room for a part of the cookie.
        IpAddr::V4(addr) if addr.octets()[0] == 0 => {
            let cookie = addr.to_bits();
            (u64::from(cookie), known.iter().find(|(netns, _)| **netns as u32 & 0x00ff_ffff == cookie))
        }
        IpAddr::V6(addr) if addr.to_bits() > 1 && addr.to_bits() >> 64 == 0 => {
            let cookie = addr.to_bits() as u64;
            (cookie, known.get_key_value(&cookie))
        }
        _ => return client.to_string(),
    };
    known.map_or_else(|| format!("netns:{cookie}"), |(_, addr)| addr.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::name;

    #[test]
    fn sockets_without_an_address_are_named_by_that_of_their_namespace() {
        let addr = |text: &str| text.parse().expect("an address");
        let known = HashMap::from([(0x0500_0003, addr("10.0.0.3")), (7, addr("2001:db8::7"))]);
        let shown = ["10.0.0.1", "0.0.1.2", "0.0.0.3", "2001:db8::1", "::1", "::5:1", "::7"];
        assert_eq!(
            shown.map(|client| name(addr(client), &known)),
            ["10.0.0.1", "netns:258", "10.0.0.3", "2001:db8::1", "::1", "netns:327681", "2001:db8::7"]
        );
    }
}
