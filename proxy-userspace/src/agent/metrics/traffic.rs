//! What services and their backends serve: connections, packets, bytes. Taken from the look
//! at all connections that every sweep begins with, so a scrape costs no look of its own.

use std::{
    fmt::Error,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use proxy_common::maps::frontends::Kind;

use super::series::{Seen, Series};
use crate::{
    dataplane::{Reconciler, Served, Survey},
    meter::Meter,
    model::{Protocol, ServicePortName},
};

/// Series of services, by port and kind of frontend; and series of backends.
const SERVICES: usize = 10_000;
const BACKENDS: usize = 2_000;

/// Stands in the label `service` for all that have no series of their own.
const OTHER: &str = "other";

macro_rules! labels {
    ($($label:literal),*) => { &["namespace", "service", "port", "protocol", $($label),*] };
}

/// The metrics of this module: four of services, then the same of backends.
pub(super) const TRAFFIC: [Meter; 8] = [
    Meter::counter(
        "shunt_service_connections_total",
        labels!("kind"),
        "Connections opened, by service port and kind of frontend; those of socket LB included",
    ),
    Meter::gauge(
        "shunt_service_connections_open",
        labels!("kind"),
        "Connections whose packets are translated, and which are not over",
    ),
    Meter::counter(
        "shunt_service_packets_total",
        labels!("kind", "direction"),
        "Packets translated; in is from clients",
    ),
    Meter::counter(
        "shunt_service_bytes_total",
        labels!("kind", "direction"),
        "Bytes of packets translated; in is from clients",
    ),
    Meter::counter(
        "shunt_backend_connections_total",
        labels!("backend"),
        "Connections opened to a backend; those of socket LB included",
    ),
    Meter::gauge(
        "shunt_backend_connections_open",
        labels!("backend"),
        "Connections to a backend whose packets are translated, and which are not over",
    ),
    Meter::counter(
        "shunt_backend_packets_total",
        labels!("backend", "direction"),
        "Packets translated for a backend; in is from clients",
    ),
    Meter::counter(
        "shunt_backend_bytes_total",
        labels!("backend", "direction"),
        "Bytes of packets translated for a backend; in is from clients",
    ),
];

type Port = (ServicePortName, Protocol);

/// The series, shared with whoever shows them.
#[derive(Clone, Debug)]
pub(super) struct TrafficMetrics(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    seen: Seen,
    services: Series<(Port, Kind)>,
    backends: Series<(Port, SocketAddr)>,
}

impl Default for TrafficMetrics {
    fn default() -> Self {
        let (services, backends) = (Series::new(SERVICES), Series::new(BACKENDS));
        Self(Arc::new(Mutex::new(State { seen: Seen::default(), services, backends })))
    }
}

impl TrafficMetrics {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what a survey found. `names` knows what its ids stand for.
    pub(super) fn take(&self, survey: &Survey, names: &Reconciler) {
        let State { seen, services, backends } = &mut *self.state();
        services.begin();
        backends.begin();
        for ((family, key), more) in seen.look(survey.served()) {
            let port = names.service_port(key.service).map(|(name, protocol)| (name.clone(), protocol));
            let backend = port.clone().zip(names.backend(family, key.backend));
            let kind = Kind(u8::try_from(key.kind).unwrap_or(u8::MAX));
            services.add(port.map(|port| (port, kind)), &more);
            backends.add(backend, &more);
        }
        // A service that rests is still there; a backend that is gone never comes back.
        services.end(|((name, protocol), _)| names.has_service_port(name, *protocol));
        backends.end(|_| false);
    }
}

impl Collector for TrafficMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let state = self.state();
        let services: Vec<_> = state
            .services
            .rows()
            .map(|(key, served)| (labels(key.map(|(port, kind)| (port, kind.name().to_owned()))), served))
            .collect();
        show(&TRAFFIC[..4], &services, &mut encoder)?;
        let backends: Vec<_> = state
            .backends
            .rows()
            .map(|(key, served)| (labels(key.map(|(port, backend)| (port, backend.to_string()))), served))
            .collect();
        show(&TRAFFIC[4..], &backends, &mut encoder)
    }
}

/// The values of the labels that a service's and a backend's series have in common; `last`
/// is the kind or the backend.
fn labels(key: Option<(&Port, String)>) -> [String; 5] {
    match key {
        Some(((name, protocol), last)) => {
            let ServicePortName { service, port } = name;
            [&*service.namespace, &*service.name, &**port, protocol.name(), &last].map(str::to_owned)
        }
        None => ["", OTHER, "", "", ""].map(str::to_owned),
    }
}

fn show(
    meters: &[Meter],
    rows: &[([String; 5], &Served)],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), Error> {
    let [connections, open, packets, bytes] = meters else { return Err(Error) };
    let one = |value: fn(&Served) -> u64| {
        rows.iter().map(move |(labels, served)| {
            (connections.with(labels.each_ref().map(String::as_str)), value(served))
        })
    };
    connections.counters(encoder, one(|served| served.opened))?;
    open.gauges(encoder, one(|served| served.open))?;
    let both = |value: fn(&Served) -> [u64; 2]| {
        rows.iter().flat_map(move |(labels, served)| {
            let [a, b, c, d, e] = labels.each_ref().map(String::as_str);
            let values = ["in", "out"].into_iter().zip(value(served));
            values.map(move |(direction, value)| (packets.with([a, b, c, d, e, direction]), value))
        })
    };
    packets.counters(encoder, both(|s| [s.traffic.in_packets, s.traffic.out_packets]))?;
    bytes.counters(encoder, both(|s| [s.traffic.in_bytes, s.traffic.out_bytes]))
}
