//! Planned rows as the maps hold them, and names read back from there.

use std::{fmt::Debug, hash::Hash, net::IpAddr};

use ipnet::IpNet;
use proxy_common::{
    addr::{Addr, Ip4, Ip6},
    maps::{
        backends::{Backend, flags},
        frontends::{self, FrontendKey, Kind},
        service_cidrs::Prefix,
        services::{NAME_LEN, ServiceRow},
        source_ranges::{SERVICE_BITS, SourceRange},
    },
};

use crate::{
    model::{Family, ObjectName, Protocol, ServicePortName},
    plan::{BackendRow, FrontendRow},
};

/// An address as maps hold it, sortable and hashable.
pub trait MapAddr: Addr + Debug + Hash + Ord + Into<IpAddr> {
    /// Its family.
    const FAMILY: Family;
    /// The address, if it is of this family.
    fn from_ip(addr: IpAddr) -> Option<Self>;
}

impl MapAddr for Ip4 {
    const FAMILY: Family = Family::V4;

    fn from_ip(addr: IpAddr) -> Option<Self> {
        match addr {
            IpAddr::V4(addr) => Some(addr.into()),
            IpAddr::V6(_) => None,
        }
    }
}

impl MapAddr for Ip6 {
    const FAMILY: Family = Family::V6;

    fn from_ip(addr: IpAddr) -> Option<Self> {
        match addr {
            IpAddr::V4(_) => None,
            IpAddr::V6(addr) => Some(addr.into()),
        }
    }
}

/// The key of a frontend; NodePorts are stored under the unspecified address.
pub(super) fn frontend_key<A: MapAddr>(row: &FrontendRow) -> Option<FrontendKey<A>> {
    let addr = row.addr.map_or(Some(A::default()), A::from_ip)?;
    Some(FrontendKey { addr, port: row.port, proto: row.proto, pad: 0 })
}

/// The flags of a frontend.
pub(super) fn frontend_flags(row: &FrontendRow) -> u8 {
    let bits = [(row.source_ranges, frontends::flags::SOURCE_RANGES), (row.hashed, frontends::flags::MAGLEV)];
    bits.into_iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit)
}

/// True for frontends that lead to backends at all.
pub(super) fn leads_to_backends(row: &FrontendRow) -> bool {
    row.kind != Kind::ADDRESS
}

/// The row of a backend.
pub(super) fn backend<A: MapAddr>(row: &BackendRow, protocol: Protocol) -> Option<Backend<A>> {
    Some(Backend {
        addr: A::from_ip(row.addr.ip())?,
        port: row.addr.port(),
        proto: protocol.number(),
        flags: flags::PRESENT | if row.local { flags::LOCAL } else { 0 },
    })
}

/// The row of a service port. A name too long for the row, which the API would refuse,
/// is cut.
pub(super) fn service(name: &ServicePortName, protocol: Protocol) -> ServiceRow {
    let mut text = name.to_string();
    text.truncate(text.floor_char_boundary(NAME_LEN));
    ServiceRow::new(&text, protocol.number()).expect("the name was cut to fit")
}

/// The service port a row names, if it is a row this agent could have written.
pub fn service_name(row: &ServiceRow) -> Option<(ServicePortName, Protocol)> {
    let protocol =
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| p.number() == row.proto)?;
    let (namespace, rest) = row.name().split_once('/')?;
    let (name, port) = rest.split_once(':').unwrap_or((rest, ""));
    let service = ObjectName::new(namespace, name);
    Some((ServicePortName { service, port: port.into() }, protocol))
}

/// The row of a source range of a service port.
pub(super) fn source_range<A: MapAddr>(service: u32, net: &IpNet) -> Option<SourceRange<A>> {
    let Prefix { bits, addr } = prefix(net)?;
    Some(SourceRange { bits: SERVICE_BITS + bits, service, addr })
}

/// The key of a service range.
pub(super) fn prefix<A: MapAddr>(net: &IpNet) -> Option<Prefix<A>> {
    let net = net.trunc();
    Some(Prefix { bits: net.prefix_len().into(), addr: A::from_ip(net.addr())? })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;

    fn decode<A: MapAddr>(row: &Backend<A>) -> BackendRow {
        let addr = SocketAddr::new(row.addr.into(), row.port);
        BackendRow { addr, local: row.flags & flags::LOCAL != 0, weight: 1 }
    }

    proptest! {
        #[test]
        fn backends_survive(addr: SocketAddr, local: bool) {
            // Scope and flow label are no part of an endpoint's address.
            let row = BackendRow { addr: SocketAddr::new(addr.ip(), addr.port()), local, weight: 1 };
            let decoded = match addr {
                SocketAddr::V4(_) => backend::<Ip4>(&row, Protocol::Tcp).as_ref().map(decode),
                SocketAddr::V6(_) => backend::<Ip6>(&row, Protocol::Tcp).as_ref().map(decode),
            };
            prop_assert_eq!(decoded, Some(row));
        }

        #[test]
        fn service_names_survive(ns in "[a-z0-9-]{1,63}", name in "[a-z0-9-]{1,63}", port in "[a-z0-9-]{0,63}") {
            let name = ServicePortName { service: ObjectName::new(ns, name), port: port.into() };
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                let decoded = service_name(&service(&name, protocol));
                prop_assert_eq!(decoded, Some((name.clone(), protocol)));
            }
        }

        #[test]
        fn any_name_has_a_row(name in "\\PC{0,300}") {
            let name = ServicePortName { service: ObjectName::new("ns", name), port: "".into() };
            prop_assert!(service(&name, Protocol::Udp).name().starts_with("ns/"));
        }
    }

    #[test]
    fn families_are_kept_apart() {
        let row = BackendRow { addr: "[::1]:80".parse().expect("an address"), local: false, weight: 1 };
        assert!(backend::<Ip4>(&row, Protocol::Tcp).is_none());
        assert!(prefix::<Ip6>(&"10.0.0.0/8".parse().expect("a range")).is_none());
        let prefix = prefix::<Ip4>(&"10.1.2.3/8".parse().expect("a range")).expect("its family");
        assert_eq!((prefix.bits, prefix.addr), (8, [10, 0, 0, 0].into()));
    }
}
