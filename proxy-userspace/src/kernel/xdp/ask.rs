//! What the kernel says of XDP on a device, by netlink: the program in force, and in words
//! why a driver refuses one. What drivers can do is asked in `netdev`.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use aya_obj::generated::{XDP_FLAGS_REPLACE, XDP_FLAGS_UPDATE_IF_NOEXIST};
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkPayload, NlasIterator};
use netlink_sys::protocols::NETLINK_ROUTE;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage, LinkXdp, XdpAttached},
};

use super::{XdpInForce, XdpMode, netdev};
use crate::kernel::netlink_socket::NetlinkSocket;

/// `NLMSGERR_ATTR_MSG` of linux/netlink.h: what the kernel says of an error.
const ERROR_TEXT: u16 = 1;
/// The header of the request comes before it.
const HEADER_LEN: usize = 16;

/// Asks questions about devices.
pub(super) struct Asker {
    route: NetlinkSocket,
}

impl Asker {
    pub(super) fn open() -> io::Result<Self> {
        let route = NetlinkSocket::open(NETLINK_ROUTE)?;
        route.explain_errors()?;
        Ok(Self { route })
    }

    /// The program of a device.
    pub(super) fn in_force(&mut self, ifindex: u32) -> io::Result<Option<XdpInForce>> {
        let mut message = LinkMessage::default();
        message.header.index = ifindex;
        self.route.send(NLM_F_REQUEST, RouteNetlinkMessage::GetLink(message).into())?;
        for payload in self.route.receive::<RouteNetlinkMessage>()? {
            match payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    return Ok(in_force(&link.attributes));
                }
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
        }
        Ok(None)
    }

    /// `NETDEV_XDP_ACT_*` of a device; nothing where the kernel does not tell (before 6.3).
    pub(super) fn features(&self, ifindex: u32) -> Option<u64> {
        netdev::features(ifindex).ok().flatten()
    }

    /// Why `program` is refused, in the kernel's words. The call that makes a link has none
    /// for us, so the other way to attach a program is asked, and undone should it succeed.
    pub(super) fn explain(&mut self, program: BorrowedFd<'_>, ifindex: u32, flags: u32) -> Option<String> {
        let fd = program.as_raw_fd();
        match self.set(ifindex, [LinkXdp::Fd(fd), LinkXdp::Flags(flags | XDP_FLAGS_UPDATE_IF_NOEXIST)]) {
            Ok(None) => {
                let undo = flags | XDP_FLAGS_REPLACE;
                let expected = LinkXdp::ExpectedFd(fd.cast_unsigned());
                let _ = self.set(ifindex, [LinkXdp::Fd(-1), LinkXdp::Flags(undo), expected]);
                None
            }
            Ok(words) => words.filter(|words| !words.is_empty()),
            Err(_) => None,
        }
    }

    /// Nothing if the kernel has done it; else its words, which may be none.
    fn set<const N: usize>(&mut self, ifindex: u32, xdp: [LinkXdp; N]) -> io::Result<Option<String>> {
        let mut message = LinkMessage::default();
        message.header.index = ifindex;
        message.attributes = vec![LinkAttribute::Xdp(xdp.into())];
        self.route.send(NLM_F_REQUEST | NLM_F_ACK, RouteNetlinkMessage::SetLink(message).into())?;
        for payload in self.route.receive::<RouteNetlinkMessage>()? {
            if let NetlinkPayload::Error(error) = payload {
                return Ok(error.code.map(|_| words(&error.header)));
            }
        }
        Ok(Some(String::new()))
    }
}

/// The kernel's words in an error message.
fn words(message: &[u8]) -> String {
    let attributes = NlasIterator::new(message.get(HEADER_LEN..).unwrap_or_default());
    let text = attributes.flatten().find(|attribute| attribute.kind() == ERROR_TEXT);
    let text = text.map(|text| String::from_utf8_lossy(text.value()).into_owned()).unwrap_or_default();
    text.trim_end_matches('\0').to_owned()
}

/// The program that the attributes of a device tell of.
pub(in crate::kernel) fn in_force(attributes: &[LinkAttribute]) -> Option<XdpInForce> {
    let xdp =
        attributes.iter().find_map(|a| if let LinkAttribute::Xdp(xdp) = a { Some(xdp) } else { None })?;
    let mut mode = XdpMode::None;
    let mut program = 0;
    for fact in xdp {
        match fact {
            LinkXdp::Attached(XdpAttached::None) => return None,
            LinkXdp::Attached(XdpAttached::SocketBuffer) => mode = XdpMode::Generic,
            LinkXdp::Attached(_) => mode = XdpMode::Native,
            LinkXdp::ProgId(id) | LinkXdp::DrvProgId(id) => program = *id,
            _ => {}
        }
    }
    (mode != XdpMode::None).then_some(XdpInForce { mode, program })
}
