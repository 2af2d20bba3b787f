//! Settings of the loopback device where it is an edge, by netlink: in a container that is not
//! privileged, `/proc/sys` is read-only.

use std::{fs, io};

use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED, NLM_F_ACK, NLM_F_REQUEST, NetlinkPayload};
use netlink_sys::protocols::NETLINK_ROUTE;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{AfSpecInet, AfSpecUnspec, LinkAttribute, LinkMessage},
};

use super::{host::LOOPBACK, netlink_socket::NetlinkSocket};

/// `IFLA_INET_CONF` of linux/if_link.h.
const INET_CONF: u16 = 1;
/// `IPV4_DEVCONF_ACCEPT_LOCAL` and `IPV4_DEVCONF_ROUTE_LOCALNET` of linux/ip.h.
const SETTINGS: [u16; 2] = [23, 26];

/// A reply to a host process enters by loopback with one of the host's own addresses as
/// source, a loopback address among them, which the kernel takes for a forgery elsewhere
/// and by default here too.
pub(super) fn accept_own_sources(accept: bool) {
    if let Err(error) = set(accept) {
        tracing::warn!(
            %error,
            "cannot change accept_local and route_localnet of loopback: host processes may not reach \
             NodePorts of this node"
        );
    }
}

/// Whether it does.
///
/// # Errors
/// When the settings cannot be read.
pub(super) fn accepts_own_sources() -> io::Result<bool> {
    for setting in ["accept_local", "route_localnet"] {
        if fs::read_to_string(format!("/proc/sys/net/ipv4/conf/lo/{setting}"))?.trim() == "0" {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The same as [`accept_own_sources`] for those who tell of it themselves.
///
/// The message that the kernel takes can set what the library names, and not clear it, so
/// the attributes are made here.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn set(accept: bool) -> io::Result<()> {
    let value = u32::from(accept);
    let settings = SETTINGS.map(|setting| DefaultNla::new(setting, value.to_ne_bytes().to_vec()));
    let mut nested = vec![0; settings.as_slice().buffer_len()];
    settings.as_slice().emit(&mut nested);
    let inet = AfSpecInet::Other(DefaultNla::new(INET_CONF | NLA_F_NESTED, nested));
    let mut message = LinkMessage::default();
    message.header.index = LOOPBACK;
    message.attributes = vec![LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![inet])])];
    let mut socket = NetlinkSocket::open(NETLINK_ROUTE)?;
    socket.send(NLM_F_REQUEST | NLM_F_ACK, RouteNetlinkMessage::SetLink(message).into())?;
    for payload in socket.receive::<RouteNetlinkMessage>()? {
        if let NetlinkPayload::Error(error) = payload {
            return if error.code.is_none() { Ok(()) } else { Err(error.to_io()) };
        }
    }
    Err(io::Error::other("the kernel has not answered"))
}
