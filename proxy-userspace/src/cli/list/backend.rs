//! `shunt backend list`: whom traffic is sent to, and for which services.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    path::Path,
};

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use proxy_common::{maps::backends::flags::LOCAL, proto};
use serde::Serialize;

use super::{
    ListArgs, Listed, Stored,
    column::{Column, Shown, Value},
    filter::{Facets, Where},
};
use crate::{
    cli::{
        rows::{Names, Rows, Tables, socket},
        usage::{Counts, Usage},
    },
    dataplane::MapAddr,
    model::Family,
};

/// `shunt backend`
#[derive(Debug, Subcommand)]
pub enum BackendCommand {
    /// Show the endpoints that traffic is sent to and the services that use them.
    ///
    /// A backend is in use while it takes new connections. One that is draining takes none; it has a row
    /// for the flows that still go there. CONNECTIONS are open ones whose packets are rewritten; OPENED
    /// are all that went there since the maps were made, those of sockets included.
    #[command(after_help = EXAMPLES)]
    List(ListArgs<BackendRowView>),
}

const EXAMPLES: &str = "Examples:
  shunt backend list
  shunt backend list --service shop/web --sort connections --reverse
  shunt backend list --state draining
  shunt backend list --local -o json | jq -r '.[].address'";

/// Which backends.
#[derive(Debug, Default, Args)]
pub struct BackendFilter {
    /// By what all lists have.
    #[command(flatten)]
    pub at: Where,
    /// Only those on this node.
    #[arg(long, help_heading = "Filters")]
    pub local: bool,
    /// Only those in this state.
    #[arg(long, ignore_case = true, help_heading = "Filters")]
    pub state: Option<BackendState>,
}

/// Whether a backend takes new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum BackendState {
    /// It does.
    InUse,
    /// It does not any more; what goes there goes on.
    Draining,
}

impl BackendState {
    fn name(self) -> &'static str {
        match self {
            BackendState::InUse => "in-use",
            BackendState::Draining => "draining",
        }
    }
}

/// One backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendRowView {
    /// Its index in the map of its family.
    pub id: u32,
    /// Address and port of the endpoint.
    pub address: SocketAddr,
    /// TCP, UDP or SCTP.
    pub protocol: &'static str,
    /// The service ports that send to it; while it drains, those whose flows go there still.
    pub services: Vec<String>,
    /// It runs on this node.
    pub local: bool,
    /// Whether it takes new connections.
    pub state: BackendState,
    /// What went there for all services together.
    #[serde(flatten)]
    pub counts: Counts,
}

impl Listed for BackendRowView {
    type Filter = BackendFilter;

    const COLUMNS: &'static [Column<Self>] = &[
        Column { name: "ID", shown: Shown::Always, value: |v| u64::from(v.id).into() },
        Column { name: "ADDRESS", shown: Shown::Always, value: |v| Value::Socket(v.address) },
        Column { name: "PROTO", shown: Shown::Always, value: |v| v.protocol.into() },
        Column { name: "LOCAL", shown: Shown::Always, value: |v| if v.local { "yes" } else { "no" }.into() },
        Column { name: "STATE", shown: Shown::Always, value: |v| v.state.name().into() },
        Column { name: "CONNECTIONS", shown: Shown::Always, value: |v| v.counts.connections.into() },
        Column { name: "OPENED", shown: Shown::Always, value: |v| v.counts.opened.into() },
        Column { name: "INPKTS", shown: Shown::Wide, value: |v| v.counts.in_packets.into() },
        Column { name: "OUTPKTS", shown: Shown::Wide, value: |v| v.counts.out_packets.into() },
        Column { name: "INBYTES", shown: Shown::Wide, value: |v| v.counts.in_bytes.into() },
        Column { name: "OUTBYTES", shown: Shown::Wide, value: |v| v.counts.out_bytes.into() },
        Column { name: "SERVICES", shown: Shown::Narrow, value: some_services },
        Column { name: "SERVICES", shown: Shown::Wide, value: |v| Value::Lines(v.services.clone()) },
    ];

    fn is_wanted(&self, filter: &BackendFilter) -> bool {
        let facets = Facets {
            services: self.services.iter().map(String::as_str).collect(),
            addresses: vec![self.address.ip()],
            ports: vec![self.address.port()],
            protocol: Some(self.protocol),
            family: Family::of(self.address.ip()).name(),
        };
        filter.at.admits(&facets)
            && (!filter.local || self.local)
            && filter.state.is_none_or(|state| self.state == state)
    }
}

impl Stored for BackendRowView {
    fn read(bpffs: &Path, filter: &BackendFilter) -> Result<Vec<Self>> {
        let tables = Tables::read(bpffs, filter.at.numeric)?;
        let mut views = backends(&tables.v4, &tables.names);
        views.extend(backends(&tables.v6, &tables.names));
        Ok(views)
    }
}

/// Services in a cell of the short table: one, and how many more.
fn some_services(view: &BackendRowView) -> Value {
    match &view.services[..] {
        [] => Value::None,
        [one] => one.as_str().into(),
        [first, others @ ..] => Value::text(format!("{first} … {} more", others.len())),
    }
}

/// All backends of a family, in the order of their addresses.
pub fn backends<A: MapAddr>(rows: &Rows<A>, names: &Names) -> Vec<BackendRowView> {
    let mut users: HashMap<u32, BTreeSet<u32>> = HashMap::new();
    for (_, frontend) in &rows.frontends {
        for id in [frontend.cluster, frontend.local].into_iter().flat_map(|range| rows.slots_of(range)) {
            users.entry(id).or_default().insert(frontend.service);
        }
    }
    let mut counted: HashMap<u32, Counts> = HashMap::new();
    for (key, counts) in Usage::of(rows).iter() {
        *counted.entry(key.backend).or_default() += *counts;
    }
    let mut flows: HashMap<u32, BTreeSet<u32>> = HashMap::new();
    for entry in rows.conntrack.values().filter(|entry| !users.contains_key(&entry.backend)) {
        flows.entry(entry.backend).or_default().insert(entry.service);
    }
    let view = |(id, row): (&u32, &_)| {
        let row: &proxy_common::maps::backends::Backend<A> = row;
        let state = if users.contains_key(id) { BackendState::InUse } else { BackendState::Draining };
        let services = users.get(id).or_else(|| flows.get(id));
        let mut services: Vec<_> = services.into_iter().flatten().map(|service| names.of(*service)).collect();
        services.sort();
        BackendRowView {
            id: *id,
            address: socket(row.addr, row.port),
            protocol: proto::name(row.proto).unwrap_or("any"),
            services,
            local: row.flags & LOCAL != 0,
            state,
            counts: counted.get(id).copied().unwrap_or_default(),
        }
    };
    let mut views: Vec<_> = rows.backends.iter().map(view).collect();
    views.sort_by_key(|view| (view.address, view.protocol, view.id));
    views
}
