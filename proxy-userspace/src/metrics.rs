//! What an operator asks for over HTTP: `/metrics` and the paths that kube-proxy has beside
//! it. Modules register what they count, each by its own table; nothing is counted here but
//! the process itself.

mod debug;
mod process;
mod slis;
mod text;

use std::{fmt, io, net::SocketAddr, sync::Arc};

use prometheus_client::{
    metrics::{family, gauge::Gauge},
    registry::Registry,
};
use tracing::{info, warn};

pub use self::{
    debug::{Debug, Setter},
    process::PROCESS,
    slis::{Checks, SLIS},
};
use crate::{
    meter::Meter,
    serve::{self, Answer, Asked, Content, Handler, Listen, Method, Reply, StatusCode, Task},
};

/// What `/proxyMode` says. Not one of kube-proxy's modes, because who asks wants to know
/// whose rules to look for.
pub const PROXY_MODE: &str = "shunt";

/// What this module tells about the agent.
pub const BUILD: [Meter; 1] = [Meter::gauge("shunt_build_info", &["version"], "1; the agent that runs")];

/// The effective configuration as JSON, at the moment it is asked for.
pub type Configz = Arc<dyn Fn() -> String + Send + Sync>;

/// The metrics of all modules.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    slis: Registry,
    checks: Checks,
}

/// What is served beside the metrics.
#[derive(Clone)]
pub struct Pages {
    /// `/configz`
    pub configz: Configz,
    /// `/debug`, where it is wanted.
    pub debug: Option<Debug>,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("debug", &self.debug).finish_non_exhaustive()
    }
}

/// Serves metrics until it is dropped.
#[derive(Debug)]
pub struct MetricsServer(#[allow(dead_code, reason = "held for its drop")] Task);

impl Metrics {
    /// The version, the process, and the checks of the agent's health.
    pub fn new(checks: Checks) -> Self {
        let (mut registry, mut slis) = (Registry::default(), Registry::default());
        let build: family::Family<_, Gauge> = family::Family::default();
        build.get_or_create(&BUILD[0].with([env!("CARGO_PKG_VERSION")])).set(1);
        BUILD[0].register(&mut registry, build);
        process::register(&mut registry);
        checks.register(&mut slis);
        process::register_start(&mut slis);
        Self { registry, slis, checks }
    }

    /// Where modules register what they count.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// Serves what is registered. A port that is taken is tried again, unless it has to be
    /// free at once.
    ///
    /// # Errors
    /// When it is not.
    pub fn serve(self, address: SocketAddr, at_once: bool, pages: Pages) -> io::Result<MetricsServer> {
        let listen = Listen::general(address);
        let site = Arc::new(Site { metrics: self, pages });
        let handler: Handler = Arc::new(move |asked| site.reply(asked));
        let task = if at_once {
            serve::start_at_once(listen, handler)?
        } else {
            serve::start(listen, "metrics", handler)
        };
        info!(%address, "serving metrics");
        Ok(MetricsServer(task))
    }
}

struct Site {
    metrics: Metrics,
    pages: Pages,
}

impl Site {
    fn reply(self: &Arc<Self>, asked: Asked) -> Reply {
        match asked.path.as_str() {
            // Reading the counters of the kernel takes a while.
            "/metrics" => {
                let site = self.clone();
                Reply::blocking(move || text::answer(&site.metrics.registry, &asked.accept))
            }
            "/metrics/slis" if asked.method == Method::DELETE => {
                self.metrics.checks.reset();
                Answer::text(StatusCode::OK, "metrics reset\n").into()
            }
            "/metrics/slis" => text::answer(&self.metrics.slis, &asked.accept).into(),
            "/healthz" | "/healthz/ping" => {
                self.metrics.checks.observe("ping", "healthz", true);
                Answer::ok(Content::Text, "ok").into()
            }
            "/proxyMode" => Answer::ok(Content::Text, PROXY_MODE).into(),
            "/configz" => Answer::ok(Content::Json, (self.pages.configz)()).into(),
            path if path.starts_with("/debug/") => {
                self.pages.debug.as_ref().map_or_else(|| None.into(), |debug| debug.reply(&asked))
            }
            _ => None.into(),
        }
    }
}

/// What cannot be written down is an error of this agent, and nothing else of it suffers.
fn broken(error: fmt::Error) -> Answer {
    warn!(%error, "cannot write metrics");
    Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "cannot write metrics\n")
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;
    use crate::serve::{Bytes, Family};

    const PACKETS: Meter = Meter::counter("shunt_packets_total", &[], "Packets");

    fn site() -> Arc<Site> {
        let mut metrics = Metrics::new(Checks::default());
        let packets: Counter = Counter::default();
        PACKETS.register(metrics.registry(), packets.clone());
        packets.inc_by(3);
        let pages = Pages { configz: Arc::new(|| "{}".into()), debug: None };
        Arc::new(Site { metrics, pages })
    }

    async fn ask(site: &Arc<Site>, method: Method, path: &str, accept: &str) -> Answer {
        let asked = Asked {
            method,
            path: path.into(),
            query: String::new(),
            accept: accept.into(),
            body: Bytes::new(),
            family: Family::V4,
            port: 10249,
        };
        match site.reply(asked) {
            Reply::Now(answer) => answer,
            Reply::Later(answer) => answer.await,
        }
    }

    fn words(answer: &Answer) -> &str {
        std::str::from_utf8(&answer.body).unwrap()
    }

    #[tokio::test]
    async fn what_is_registered_is_told() {
        let site = site();
        let plain = ask(&site, Method::GET, "/metrics", "").await;
        assert_eq!(plain.content, Content::Prometheus);
        let text = words(&plain);
        assert!(text.contains("# TYPE shunt_packets_total counter\nshunt_packets_total 3\n"), "{text}");
        assert!(text.contains("shunt_build_info{version="), "{text}");
        assert!(text.contains("\nprocess_open_fds "), "{text}");
        let open = ask(&site, Method::GET, "/metrics", "application/openmetrics-text").await;
        assert_eq!(open.content, Content::OpenMetrics);
        assert!(words(&open).contains("# TYPE shunt_packets counter\nshunt_packets_total 3\n"));
    }

    #[tokio::test]
    async fn checks_are_counted_until_they_are_reset() {
        let site = site();
        assert_eq!(words(&ask(&site, Method::GET, "/healthz", "").await), "ok");
        let counted = r#"kubernetes_healthchecks_total{name="ping",type="healthz",status="success"} 1"#;
        assert!(words(&ask(&site, Method::GET, "/metrics/slis", "").await).contains(counted));
        assert_eq!(words(&ask(&site, Method::DELETE, "/metrics/slis", "").await), "metrics reset\n");
        assert!(!words(&ask(&site, Method::GET, "/metrics/slis", "").await).contains("ping"));
    }

    #[tokio::test]
    async fn other_paths() {
        let site = site();
        assert_eq!(words(&ask(&site, Method::GET, "/proxyMode", "").await), "shunt");
        assert_eq!(ask(&site, Method::GET, "/configz", "").await, Answer::ok(Content::Json, "{}"));
        for path in ["/", "/debug/pprof/profile", "/metrics/x"] {
            assert_eq!(ask(&site, Method::GET, path, "").await.status, StatusCode::NOT_FOUND, "{path}");
        }
    }
}
