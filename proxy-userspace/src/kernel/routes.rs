//! Where the host's routing tables would send a packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};

use super::{KernelError, Netlink};

/// A packet, as far as routing looks at it.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Destination.
    pub to: IpAddr,
    /// Source; without one the host chooses it.
    pub from: Option<IpAddr>,
    /// The device it came in by; none if a process of this host sends it.
    pub came_by: Option<u32>,
}

/// The way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The device it leaves by, or loopback if it stays.
    pub ifindex: u32,
    /// It is for a process of this host.
    pub is_here: bool,
    /// The source that a process of this host gets which chooses none.
    pub source: Option<IpAddr>,
    /// The router it goes to, if any.
    pub gateway: Option<IpAddr>,
}

impl Netlink {
    /// The way of a packet; none if the host has none.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn way(&self, question: Question) -> Result<Option<Way>, KernelError> {
        let asked = self.handle().route().get(message(question)).execute();
        match asked.try_collect::<Vec<_>>().await {
            Ok(routes) => Ok(routes.first().and_then(way)),
            // The tables name no way, or forbid the one there is.
            Err(rtnetlink::Error::NetlinkError(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn message(Question { to, from, came_by }: Question) -> RouteMessage {
    let ifindex = came_by.unwrap_or(0);
    match to {
        IpAddr::V4(to) => {
            let mut message = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(to, 32);
            if let Some(IpAddr::V4(from)) = from {
                message = message.source_prefix(from, 32);
            }
            if ifindex != 0 { message.input_interface(ifindex) } else { message }.build()
        }
        IpAddr::V6(to) => {
            let mut message = RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(to, 128);
            if let Some(IpAddr::V6(from)) = from {
                message = message.source_prefix(from, 128);
            }
            if ifindex != 0 { message.input_interface(ifindex) } else { message }.build()
        }
    }
}

fn way(message: &RouteMessage) -> Option<Way> {
    let is_here = message.header.kind == RouteType::Local;
    if !is_here && message.header.kind != RouteType::Unicast {
        return None;
    }
    let mut way = Way { ifindex: 0, is_here, source: None, gateway: None };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(ifindex) => way.ifindex = *ifindex,
            RouteAttribute::PrefSource(address) => way.source = ip(address),
            RouteAttribute::Gateway(address) => way.gateway = ip(address),
            _ => (),
        }
    }
    (way.ifindex != 0).then_some(way)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
