//! `shunt explain`: why does this address go where it goes.
//!
//! The rows say what there is to choose from; what is chosen, the programs themselves say: the
//! first packet of the connection goes through them on trial ([`trial`]), over the live maps
//! and without a trace. Only what socket LB would do is told from its rules, for its hooks
//! cannot be run on trial.

pub mod answer;
pub mod ask;
mod facts;
mod packet;
mod text;
mod trial;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use proxy_common::{
    addr::{Ip4, Ip6},
    maps::frontends::Kind,
};

use self::{
    answer::Explanation,
    ask::{Answers, From, To},
    facts::{Asked, Facts},
};
use super::{
    BpffsArg,
    output::{self, Output},
    rows::{Rows, Tables},
};
use crate::{
    dataplane::MapAddr,
    kernel::{Host, KernelAddr, Netlink, PinnedMaps, Pins},
};

pub(super) const EXAMPLES: &str = "Examples:
  shunt explain 10.244.1.7 10.96.0.10:53/UDP
  shunt explain outside 192.0.2.11:30080
  shunt explain host shop/web:https
  shunt explain 10.244.1.7 shop/web -o json | jq .verdict
  shunt explain 203.0.113.9 198.51.100.10:443 --sport 40123";

/// `shunt explain`
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Who connects: an address; `host` for a process in this host's network; `outside` for
    /// somebody who is no part of the cluster.
    #[arg(value_name = "FROM")]
    pub from: From,
    /// Where to: ADDRESS[:PORT][/PROTO] or NAMESPACE/SERVICE[:PORT][/PROTO]. What is left out is found
    /// where there is no choice.
    #[arg(value_name = "TO")]
    pub to: To,
    /// Source port. A connection that exists under it decides. Without one: a port that has no connection.
    #[arg(long, value_name = "PORT")]
    pub sport: Option<u16>,
    /// The device the packet comes in by, where the routes do not tell.
    #[arg(long, value_name = "INTERFACE")]
    pub via: Option<String>,
    /// How to show it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
    /// Where the maps are.
    #[command(flatten)]
    pub bpffs: BpffsArg,
}

/// Explains and prints. Traffic that is refused is an answer, not an error.
pub fn run(args: &ExplainArgs) -> Result<ExitCode> {
    let explanation = super::runtime()?.block_on(explain(args))?;
    let text = match args.output {
        Output::Json => output::json(&explanation)?,
        Output::Yaml => output::yaml(&explanation)?,
        Output::Table | Output::Wide => text::render(&explanation, args.output == Output::Wide),
    };
    super::print(&text)
}

async fn explain(args: &ExplainArgs) -> Result<Explanation> {
    let tables = Tables::read(&args.bpffs.bpffs, false)?;
    let pins = Pins::new(&args.bpffs.bpffs);
    let maps = PinnedMaps::open(pins.clone())?;
    let mut answers = answers_of(&tables.v4);
    answers.extend(answers_of(&tables.v6));
    let v4 = match args.from {
        From::Address(address) => Some(address.is_ipv4()),
        From::Host | From::Outside => None,
    };
    let (to, port, protocol) = ask::resolve(&args.to, v4, &answers, &maps.services()?)?;
    ensure!(v4.is_none_or(|v4| v4 == to.is_ipv4()), "the client and {to} are of different families");
    let netlink = Netlink::connect()?;
    let host = netlink.host().await?;
    let via = args.via.as_deref().map(|name| device_called(&host, name)).transpose()?;
    let facts = Facts {
        settings: maps.settings()?,
        devices: maps.devices()?.into_iter().collect(),
        xdp: maps.xdp_statuses(|index| facts::name_of(&host, index))?,
        names: &tables.names,
        now: tables.now,
        netlink: &netlink,
        host: &host,
        pins: &pins,
    };
    let asked = Asked { from: args.from, sport: args.sport, to, port, protocol, via };
    if to.is_ipv4() {
        facts.explain::<Ip4>(&tables.v4, &asked).await
    } else {
        facts.explain::<Ip6>(&tables.v6, &asked).await
    }
}

fn answers_of<A: MapAddr + KernelAddr>(rows: &Rows<A>) -> Vec<Answers> {
    let answer = |(key, row): &(proxy_common::maps::frontends::FrontendKey<A>, _)| {
        let row: &proxy_common::maps::frontends::Frontend = row;
        Answers {
            service: row.service,
            address: key.addr.into(),
            port: key.port,
            protocol: key.proto,
            is_cluster_ip: row.kind == Kind::CLUSTER_IP.0,
        }
    };
    rows.frontends.iter().filter(|(key, _)| key.port != 0).map(answer).collect()
}

fn device_called(host: &Host, name: &str) -> Result<u32> {
    let link = host.links.values().find(|link| link.name == name);
    link.map(|link| link.ifindex).with_context(|| format!("there is no device {name}"))
}
