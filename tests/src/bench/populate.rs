//! API servers with thousands of services, which are nobody's but fill the tables of a proxy.
//!
//! Writing them takes a while, so it is done once; what etcd holds afterwards is kept in the user's
//! cache, and every run starts on a copy.

mod copies;
mod filler;
pub(super) mod objects;
pub(super) mod store;

pub use filler::{ENDPOINTS, endpoint, name as filler_name, slice as filler_slice};

use super::bounds::Journal;
use crate::{
    control_plane::{Options as ControlPlaneOptions, SharedControlPlane},
    late, manifests,
};
use anyhow::Result;
use kube::Client;
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// Where the fillers are.
pub const NAMESPACE: &str = "filler";

/// Of both families; the first has room for every number of fillers that is measured.
const SERVICE_RANGES: &str = "10.96.0.0/12,fd00:96::/108";

/// Options of `bench populate`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Numbers of services
    #[arg(long, value_delimiter = ',', default_values_t = [10, 1000, 10_000, 50_000])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=300_000))]
    pub services: Vec<u32>,
}

/// Makes the content of API servers with these numbers of fillers, where it is not there yet.
pub fn populate(services: &[u32]) -> Result<()> {
    services.iter().try_for_each(|services| kept(*services, |_| Ok(())).map(drop))
}

/// Starts an API server with so many fillers and two nodes, for a measurement: data that has to be
/// written is its own.
pub fn populated(services: u32, journal: &mut Journal) -> Result<Arc<SharedControlPlane>> {
    let data = kept(services, |place| journal.owns(place))?;
    Ok(Arc::new(start(Some(data))?))
}

fn start(data: Option<PathBuf>) -> Result<SharedControlPlane> {
    let options = ControlPlaneOptions {
        service_ranges: SERVICE_RANGES.into(),
        data,
        folder: Some(store::folder()?),
        unlimited: true,
    };
    SharedControlPlane::start_with(options)
}

/// The data of such an API server; made if it is not there, after it was told where.
fn kept(services: u32, told: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let place = store::place(services)?;
    if !place.exists() {
        told(&place)?;
        let begin = Instant::now();
        let control_plane = start(None)?;
        control_plane.with_clients(async |client, etcd| fill(client, etcd, services).await)?;
        late::soon(|| {
            control_plane.with_clients(async |client, _| copies::ensure_seen(&client, services).await)
        })?;
        store::keep(&control_plane, &place)?;
        println!("{services} services written in {:.0} s", begin.elapsed().as_secs_f64());
    }
    Ok(place)
}

async fn fill(client: Client, etcd: Client, services: u32) -> Result<()> {
    for node in nodes()? {
        objects::create(&client, &node).await?;
        objects::patch_status(&client, &node).await?;
    }
    objects::create_namespace(&client, NAMESPACE).await?;
    objects::create(&client, &filler::service(0)).await?;
    objects::create(&client, &filler::slice(0)).await?;
    copies::Template::read(&client).await?.put_copies(&etcd, services).await
}

/// The two nodes of the topology, without pods of their own.
fn nodes() -> Result<Vec<Value>> {
    let mut objects = manifests::two_nodes()?;
    objects.retain(|object| object["kind"] == json!("Node"));
    Ok(objects)
}
