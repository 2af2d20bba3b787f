//! IP packets that are sent as they are.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tests::netns::Namespace;

/// A socket for such packets.
pub(crate) fn raw(netns: &Namespace, family_of: IpAddr) -> Result<Socket> {
    let domain = if family_of.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    netns.run(|| Ok(Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?))
}

/// Sends them, to the address alone.
pub(crate) fn send(raw: &Socket, to: SocketAddr, packets: &[Vec<u8>]) -> Result<()> {
    // The kernel wants no port for raw sockets.
    let to = SockAddr::from(SocketAddr::new(to.ip(), 0));
    packets.iter().try_for_each(|packet| {
        raw.send_to(packet, &to).with_context(|| format!("send {} raw bytes", packet.len()))?;
        Ok(())
    })
}
