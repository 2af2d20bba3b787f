//! `/metrics`: everything that modules count, in one text. Each module registers what is its
//! own, below the prefix that is its name's or kube-proxy's; nothing is counted here.

use std::{io, net::SocketAddr, sync::Arc};

use prometheus_client::{encoding::text::encode, metrics::info::Info, registry::Registry};
use tracing::{info, warn};

use crate::serve::{self, Answer, Asked, Content, Handler, Listen, Task};

/// Prefix of what only this agent counts. Metrics that kube-proxy has too keep its prefix.
const OWN: &str = "shunt";

/// The metrics of all modules.
#[derive(Debug, Default)]
pub struct Metrics {
    registry: Registry,
}

/// Serves metrics until it is dropped.
#[derive(Debug)]
pub struct MetricsServer(#[allow(dead_code, reason = "held for its drop")] Task);

impl Metrics {
    /// Nothing but the version.
    pub fn new() -> Self {
        let mut metrics = Self::default();
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        metrics.own().register("build", "The agent that runs", version);
        metrics
    }

    /// Where modules register what only this agent counts.
    pub fn own(&mut self) -> &mut Registry {
        self.registry.sub_registry_with_prefix(OWN)
    }

    /// Serves what is registered. A port that is taken is tried again, unless it has to be
    /// free at once.
    ///
    /// # Errors
    /// When it is not.
    pub fn serve(self, address: SocketAddr, at_once: bool) -> io::Result<MetricsServer> {
        let listen = Listen::general(address);
        let handler: Handler = Arc::new(move |asked: &Asked<'_>| self.answer(asked.path));
        let task = if at_once {
            serve::start_at_once(listen, handler)?
        } else {
            serve::start(listen, "metrics", handler)
        };
        info!(%address, "serving metrics");
        Ok(MetricsServer(task))
    }

    fn answer(&self, path: &str) -> Option<Answer> {
        let (content, body) = match path {
            "/metrics" => (Content::OpenMetrics, self.text()?),
            "/healthz" => (Content::Text, "ok".to_owned()),
            _ => return None,
        };
        Some(Answer { ok: true, content, weight: None, body })
    }

    fn text(&self) -> Option<String> {
        let mut text = String::new();
        let written = encode(&mut text, &self.registry);
        written.inspect_err(|error| warn!(%error, "cannot write metrics")).ok().map(|()| text)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn what_is_registered_is_told() {
        let mut metrics = Metrics::new();
        let packets: Counter = Counter::default();
        metrics.own().register("packets", "Packets", packets.clone());
        packets.inc_by(3);
        let answer = metrics.answer("/metrics").unwrap();
        assert!(answer.body.contains("\nshunt_packets_total 3\n"), "{}", answer.body);
        assert!(answer.body.contains("shunt_build_info{version="), "{}", answer.body);
        assert_eq!(metrics.answer("/healthz").unwrap().body, "ok");
        assert_eq!(metrics.answer("/"), None);
    }
}
