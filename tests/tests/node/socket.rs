//! Sockets that stay open.

use anyhow::Result;
use tests::{
    probe::{Answer, Bulk, Dial, Exchange, PATIENCE_MS, Proto},
    topology::cluster::{Cluster, Origin},
};

/// A socket that stays open.
pub(crate) struct Socket<'a> {
    cluster: &'a Cluster,
    from: Origin,
    name: String,
}

impl<'a> Socket<'a> {
    /// One that has been answered.
    pub(crate) fn open(
        cluster: &'a Cluster,
        from: Origin,
        port: u16,
        proto: Proto,
        to: &str,
    ) -> Result<Self> {
        let name = format!("{from:?}, port {port} → {to} {proto}");
        dial(cluster, from, port, proto, to, Some(name.clone()))?;
        Ok(Self { cluster, from, name })
    }

    /// Asks once more.
    pub(crate) fn answers(&self) -> Result<Answer> {
        let (_, worker) = self.cluster.host(self.from);
        let exchange = Exchange { keep: self.name.clone(), timeout_ms: PATIENCE_MS, bulk: Bulk::default() };
        worker.exchange(exchange)?.answer(&self.name)
    }
}

/// One connection, which is closed unless it is kept under a name.
pub(crate) fn dial(
    cluster: &Cluster,
    from: Origin,
    port: u16,
    proto: Proto,
    to: &str,
    keep: Option<String>,
) -> Result<Answer> {
    let (host, worker) = cluster.host(from);
    let dial = Dial { source_port: Some(port), keep, ..Dial::new(&host.netns, proto, to.parse()?) };
    worker.dial(&dial)?.remove(0).answer(format_args!("{from:?}, port {port} → {to} {proto}"))
}
