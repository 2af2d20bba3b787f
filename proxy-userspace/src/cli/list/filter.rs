//! Which rows of a list are wanted.

use std::net::IpAddr;

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use crate::model;

/// Rows by what most of them have. All that is given must hold.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Filters")]
pub struct Where {
    /// Only of this service: NAMESPACE/NAME, or NAMESPACE/NAME:PORT for one of its ports.
    #[arg(long, value_name = "NAMESPACE/NAME[:PORT]")]
    pub service: Option<String>,
    /// Only of services in this namespace.
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Only with this address, or one in this range, at any end.
    #[arg(long, value_name = "ADDRESS[/BITS]", value_parser = range)]
    pub address: Option<IpNet>,
    /// Only with this port at any end.
    #[arg(long)]
    pub port: Option<u16>,
    /// Only of this protocol.
    #[arg(long, ignore_case = true)]
    pub protocol: Option<Protocol>,
    /// Only of this address family.
    #[arg(long, ignore_case = true)]
    pub family: Option<Family>,
    /// Show service ids in place of names.
    #[arg(short, long, help_heading = None, conflicts_with_all = ["service", "namespace"])]
    pub numeric: bool,
}

/// A protocol of services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Family {
    /// IPv4
    #[value(name = "ipv4", alias = "4")]
    V4,
    /// IPv6
    #[value(name = "ipv6", alias = "6")]
    V6,
}

/// What of a row the flags of [`Where`] look at.
#[derive(Clone, Debug, Default)]
pub struct Facets<'a> {
    /// The services it belongs to, as NAMESPACE/NAME[:PORT].
    pub services: Vec<&'a str>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its ports.
    pub ports: Vec<u16>,
    /// Its protocol; none where it stands for all of them.
    pub protocol: Option<&'a str>,
    /// Its family: `IPv4` or `IPv6`.
    pub family: &'static str,
}

impl Where {
    /// True if nothing that was asked for is missing.
    pub fn admits(&self, row: &Facets<'_>) -> bool {
        let service = |wanted: &String| row.services.iter().any(|name| is_of(name, wanted));
        let namespace = |wanted: &String| row.services.iter().any(|name| namespace(name) == wanted);
        self.service.as_ref().is_none_or(service)
            && self.namespace.as_ref().is_none_or(namespace)
            && self.address.is_none_or(|range| row.addresses.iter().any(|address| range.contains(address)))
            && self.port.is_none_or(|port| row.ports.contains(&port))
            && self.protocol.is_none_or(|wanted| row.protocol.is_none_or(|name| wanted.is(name)))
            && self.family.is_none_or(|family| family.name() == row.family)
    }
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Family::V4 => model::Family::V4.name(),
            Family::V6 => model::Family::V6.name(),
        }
    }
}

impl Protocol {
    fn is(self, name: &str) -> bool {
        self.to_possible_value().is_some_and(|value| value.get_name().eq_ignore_ascii_case(name))
    }
}

fn namespace(service: &str) -> &str {
    service.split_once('/').map_or("", |(namespace, _)| namespace)
}

/// The service itself, or one of its ports.
fn is_of(name: &str, wanted: &str) -> bool {
    name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// An address, or a range of them.
fn range(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse()
        .ok()
        .or_else(address)
        .ok_or_else(|| "neither an address nor a range such as 10.0.0.0/8".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(filter: Where) -> bool {
        filter.admits(&Facets {
            services: vec!["shop/web:http", "shop/web-2"],
            addresses: vec!["10.0.0.7".parse().unwrap(), "192.168.0.1".parse().unwrap()],
            ports: vec![80, 8080],
            protocol: Some("TCP"),
            family: "IPv4",
        })
    }

    #[test]
    fn everything_asked_for_must_hold() {
        let text = |text: &str| Some(text.to_owned());
        assert!(admits(Where::default()));
        for (name, wanted) in [
            ("shop/web", true),
            ("shop/web:http", true),
            ("shop/we", false),
            ("shop/web:https", false),
            ("shop/web-2", true),
            ("web", false),
        ] {
            assert_eq!(admits(Where { service: text(name), ..Where::default() }), wanted, "{name}");
        }
        assert!(!admits(Where { namespace: text("sho"), ..Where::default() }));
        let both = Where { namespace: text("shop"), port: Some(8080), ..Where::default() };
        assert!(admits(both.clone()));
        assert!(!admits(Where { port: Some(81), ..both.clone() }));
        assert!(admits(Where { protocol: Some(Protocol::Tcp), family: Some(Family::V4), ..both.clone() }));
        assert!(!admits(Where { protocol: Some(Protocol::Udp), ..both.clone() }));
        assert!(!admits(Where { family: Some(Family::V6), ..both }));
    }

    #[test]
    fn addresses_and_ranges() {
        for (text, wanted) in
            [("10.0.0.7", true), ("10.0.0.8", false), ("192.168.0.0/16", true), ("::/0", false)]
        {
            let address = Some(range(text).unwrap());
            assert_eq!(admits(Where { address, ..Where::default() }), wanted, "{text}");
        }
        assert!(range("10.0.0").is_err());
    }
}
