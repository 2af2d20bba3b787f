//! What is asked: who wants to reach what.

use std::{net::IpAddr, str::FromStr};

use anyhow::{Context, Result, bail, ensure};
use proxy_common::{maps::services::ServiceRow, proto};

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// A process in this host's network.
    Host,
    /// Somebody who is no part of the cluster.
    Outside,
    /// Whoever has this address.
    Address(IpAddr),
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "host" | "node" => Ok(Self::Host),
            "outside" => Ok(Self::Outside),
            _ => text
                .parse()
                .map(Self::Address)
                .map_err(|_| format!("{text:?} is neither an address nor `host` nor `outside`")),
        }
    }
}

/// Where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct To {
    /// An address or a service.
    pub place: Place,
    /// Port, by number or name.
    pub port: Option<String>,
    /// IANA number.
    pub protocol: Option<u8>,
}

/// A destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An address.
    Address(IpAddr),
    /// `namespace/name`.
    Service(String),
}

impl FromStr for To {
    type Err = String;

    /// `ADDRESS`, `ADDRESS:PORT`, `[ADDRESS]:PORT` or `NAMESPACE/NAME[:PORT]`, each with `/PROTO` or without.
    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, protocol) = match text.rsplit_once('/') {
            Some((rest, last)) if protocol(last).is_some() && !rest.is_empty() => (rest, protocol(last)),
            _ => (text, None),
        };
        if let Ok(address) = rest.parse() {
            return Ok(Self { place: Place::Address(address), port: None, protocol });
        }
        if let Some((address, port)) = rest.rsplit_once(':')
            && let Ok(address) = address.trim_start_matches('[').trim_end_matches(']').parse()
        {
            return Ok(Self { place: Place::Address(address), port: Some(port.to_owned()), protocol });
        }
        let (name, port) = rest.split_once(':').map_or((rest, None), |(name, port)| (name, Some(port)));
        match name.split_once('/') {
            Some((namespace, service)) if !namespace.is_empty() && !service.is_empty() => Ok(Self {
                place: Place::Service(name.to_owned()),
                port: port.map(ToOwned::to_owned),
                protocol,
            }),
            _ => Err(format!(
                "{text:?} is neither ADDRESS[:PORT][/PROTO] nor NAMESPACE/SERVICE[:PORT][/PROTO]"
            )),
        }
    }
}

fn protocol(text: &str) -> Option<u8> {
    [proto::TCP, proto::UDP, proto::SCTP]
        .into_iter()
        .find(|number| proto::name(*number).is_some_and(|name| name.eq_ignore_ascii_case(text)))
}

/// An address and port that a service answers on, as far as choosing one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Answers {
    /// Key in `services`.
    pub(super) service: u32,
    /// Unspecified for NodePorts.
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) protocol: u8,
    pub(super) is_cluster_ip: bool,
}

/// The address, port and protocol that `to` means, given everything services answer on. Only a
/// question that leaves a choice is an error. `v4` is the family of the client, if that is known.
pub(super) fn resolve(
    to: &To,
    v4: Option<bool>,
    answers: &[Answers],
    services: &[(u32, ServiceRow)],
) -> Result<(IpAddr, u16, u8)> {
    let number = to.port.as_deref().and_then(|port| port.parse::<u16>().ok());
    let mut fitting: Vec<Answers> = match &to.place {
        Place::Address(address) => {
            ensure!(
                to.port.is_none() || number.is_some(),
                "{:?} is no port number",
                to.port.as_deref().unwrap_or_default()
            );
            let at = |answer: &&Answers| answer.address == *address || answer.address.is_unspecified();
            answers.iter().filter(at).copied().collect()
        }
        Place::Service(name) => {
            let ids = of_service(name, to.port.as_deref().filter(|_| number.is_none()), services)?;
            let cluster = answers.iter().filter(|a| ids.contains(&a.service) && a.is_cluster_ip);
            cluster.filter(|a| v4.is_none_or(|v4| a.address.is_ipv4() == v4)).copied().collect()
        }
    };
    fitting.retain(|a| number.is_none_or(|n| a.port == n) && to.protocol.is_none_or(|p| a.protocol == p));
    if number.is_none()
        && let Place::Address(_) = to.place
    {
        fitting.retain(|a| !a.address.is_unspecified());
    }
    // The first family there is will do where none is asked for.
    fitting.sort_by_key(|a| (!a.address.is_ipv4(), a.address, a.port, a.protocol));
    if let (Place::Service(_), Some(first)) = (&to.place, fitting.first().copied()) {
        fitting.retain(|a| a.address == first.address);
    }
    fitting.dedup_by_key(|a| (a.address, a.port, a.protocol));
    match (&to.place, &fitting[..]) {
        (Place::Address(address), [one]) => Ok((*address, one.port, one.protocol)),
        (_, [one]) => Ok((one.address, one.port, one.protocol)),
        (Place::Address(address), []) => {
            let port =
                number.with_context(|| format!("no service answers on {address}; which port is meant?"))?;
            Ok((*address, port, to.protocol.unwrap_or(proto::TCP)))
        }
        (Place::Service(name), []) => bail!("{name} has no such port on a ClusterIP of this family"),
        // The same port of two protocols, as DNS has: TCP, which anything else would have been asked for.
        (Place::Address(address), several)
            if number.is_some() && several.iter().any(|a| a.protocol == proto::TCP) =>
        {
            Ok((*address, several[0].port, proto::TCP))
        }
        (_, several) => bail!("which of these ports is meant? {}", ports(several)),
    }
}

fn of_service(name: &str, port: Option<&str>, services: &[(u32, ServiceRow)]) -> Result<Vec<u32>> {
    let is_it = |row: &ServiceRow| match (row.name().split_once(':'), port) {
        (None, None) => row.name() == name,
        (Some((service, _)), None) => service == name,
        (Some((service, own)), Some(port)) => service == name && own == port,
        (None, Some(_)) => false,
    };
    let ids: Vec<u32> = services.iter().filter(|(_, row)| is_it(row)).map(|(id, _)| *id).collect();
    let port = port.map(|port| format!(" with a port called {port}")).unwrap_or_default();
    ensure!(!ids.is_empty(), "there is no service {name}{port} in the maps: see `shunt service list`");
    Ok(ids)
}

/// As they are asked for.
pub(super) fn ports(answers: &[Answers]) -> String {
    let one = |a: &Answers| format!("{}/{}", a.port, proto::name(a.protocol).unwrap_or("any"));
    answers.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(text: &str) -> To {
        text.parse().unwrap()
    }

    #[test]
    fn destinations_are_read() {
        let address = |text: &str| Place::Address(text.parse().unwrap());
        let cases = [
            ("10.96.0.10", address("10.96.0.10"), None, None),
            ("10.96.0.10:53/udp", address("10.96.0.10"), Some("53"), Some(proto::UDP)),
            ("fd00::1", address("fd00::1"), None, None),
            ("[fd00::1]:80", address("fd00::1"), Some("80"), None),
            ("shop/web", Place::Service("shop/web".into()), None, None),
            ("shop/web:http/TCP", Place::Service("shop/web".into()), Some("http"), Some(proto::TCP)),
        ];
        for (text, place, port, protocol) in cases {
            assert_eq!(to(text), To { place, port: port.map(Into::into), protocol }, "{text}");
        }
        for text in ["", "web", "/web", "shop/", "10.96.0.300"] {
            assert!(text.parse::<To>().is_err(), "{text}");
        }
    }

    fn answers() -> (Vec<Answers>, Vec<(u32, ServiceRow)>) {
        let one = |service, address: &str, port, protocol| Answers {
            service,
            address: address.parse().unwrap(),
            port,
            protocol,
            is_cluster_ip: address.starts_with("10.96") || address.starts_with("fd"),
        };
        let all = vec![
            one(1, "10.96.0.10", 53, proto::UDP),
            one(2, "10.96.0.10", 53, proto::TCP),
            one(3, "10.96.0.20", 443, proto::TCP),
            one(3, "fd00:96::20", 443, proto::TCP),
            one(3, "0.0.0.0", 30_443, proto::TCP),
        ];
        let row = |id, name, proto| (id, ServiceRow::new(name, proto).unwrap());
        let services = vec![
            row(1, "kube-system/dns:dns", proto::UDP),
            row(2, "kube-system/dns:dns-tcp", proto::TCP),
            row(3, "shop/web", proto::TCP),
        ];
        (all, services)
    }

    #[test]
    fn what_is_left_out_is_found_where_there_is_no_choice() {
        let (answers, services) = answers();
        let resolved = |text: &str, v4| {
            let found = resolve(&to(text), v4, &answers, &services);
            found.map(|(address, port, p)| format!("{address} {port} {}", proto::name(p).unwrap()))
        };
        for (text, v4, wanted) in [
            ("10.96.0.20", None, "10.96.0.20 443 TCP"),
            ("10.96.0.10:53", None, "10.96.0.10 53 TCP"),
            ("10.96.0.10:53/UDP", None, "10.96.0.10 53 UDP"),
            ("10.96.0.20:8080", None, "10.96.0.20 8080 TCP"),
            ("192.0.2.1:30443", None, "192.0.2.1 30443 TCP"),
            ("192.0.2.1:1/UDP", None, "192.0.2.1 1 UDP"),
            ("shop/web", None, "10.96.0.20 443 TCP"),
            ("shop/web", Some(false), "fd00:96::20 443 TCP"),
            ("kube-system/dns:dns", None, "10.96.0.10 53 UDP"),
            ("kube-system/dns:53/TCP", None, "10.96.0.10 53 TCP"),
        ] {
            assert_eq!(resolved(text, v4).unwrap(), wanted, "{text}");
        }
        for (text, told) in [
            ("10.96.0.10", "which of these ports is meant? 53/TCP, 53/UDP"),
            ("kube-system/dns", "which of these ports is meant? 53/TCP, 53/UDP"),
            ("192.0.2.1", "which port is meant"),
            ("shop/none", "there is no service shop/none"),
            ("shop/web:http", "with a port called http"),
            ("10.96.0.10:dns", "no port number"),
        ] {
            let error = resolved(text, None).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
