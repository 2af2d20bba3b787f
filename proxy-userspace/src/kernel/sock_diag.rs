//! Destroys connected UDP sockets through `NETLINK_SOCK_DIAG` (sock_diag(7)), which shows
//! the sockets of one network namespace at a time. A program that waits for such a socket
//! gets `ECONNABORTED`, one that sends gets `EDESTADDRREQ`: it has no peer any more.

use std::{collections::HashSet, io, net::SocketAddr, num::NonZeroI32};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkPayload};
use netlink_packet_sock_diag::{
    AF_INET, AF_INET6, IPPROTO_UDP, SockDiagDestroy, SockDiagMessage,
    inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags},
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use tracing::warn;

use super::{namespaces, netlink_socket::NetlinkSocket};
use crate::dataplane::{Sockets, StaleSocket};

/// The sockets of all network namespaces that can be entered.
#[derive(Debug, Default)]
pub struct KernelSockets {
    /// The kernel has said that it cannot destroy sockets.
    unsupported: bool,
    /// It was told that the namespaces of pods cannot be entered.
    kept_out: bool,
}

impl Sockets for KernelSockets {
    fn destroy(&mut self, stale: &[StaleSocket]) -> io::Result<usize> {
        if self.unsupported {
            return Ok(0);
        }
        let stale: HashSet<StaleSocket> = stale.iter().copied().collect();
        let (mut destroyed, mut entered) = (0, 0);
        let own = namespaces::own()?;
        for (id, namespace) in namespaces::all()? {
            let result = if id == own {
                destroy_here(&stale)
            } else {
                namespaces::inside(&namespace, || destroy_here(&stale)).inspect(|_| entered += 1)
            };
            match result {
                Ok(count) => destroyed += count,
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    self.unsupported = true;
                    warn!(
                        "this kernel cannot destroy sockets (CONFIG_INET_DIAG_DESTROY): connected UDP \
                         sockets go on sending to backends that are gone"
                    );
                    return Ok(0);
                }
                // It ended meanwhile, with all its sockets; or it is told of below.
                Err(error) if is_gone_or_closed(&error) => {}
                Err(error) => warn!(namespace = %namespace.display(), %error, "cannot look for sockets"),
            }
        }
        if entered == 0 && destroyed < stale.len() {
            self.tell_kept_out();
        }
        Ok(destroyed)
    }
}

impl KernelSockets {
    /// Some of the sockets may just have been closed; but then nobody needs them destroyed.
    fn tell_kept_out(&mut self) {
        if !std::mem::replace(&mut self.kept_out, true) {
            warn!(
                "no network namespace but the own one can be entered (it takes CAP_SYS_ADMIN, and namespaces \
                 mounted in /run/netns or the host's process ids): connected UDP sockets of pods go on sending \
                 to backends that are gone, unless pods are served by the packet path (socketLB: host)"
            );
        }
    }
}

fn is_gone_or_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

/// Destroys the sockets among `stale` that this network namespace has.
fn destroy_here(stale: &HashSet<StaleSocket>) -> io::Result<usize> {
    let mut netlink = Netlink::open()?;
    let mut destroyed = 0;
    for family in [AF_INET, AF_INET6] {
        for socket in netlink.connected_udp(family)? {
            if stale.contains(&identity(&socket.socket_id)) {
                destroyed += usize::from(netlink.destroy(socket)?);
            }
        }
    }
    Ok(destroyed)
}

fn identity(id: &SocketId) -> StaleSocket {
    let [a, b, c, d, e, f, g, h] = id.cookie;
    let (low, high) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
    // An IPv6 socket may be connected to an IPv4 address in its mapped form.
    let peer = SocketAddr::new(id.destination_address.to_canonical(), id.destination_port);
    StaleSocket { cookie: u64::from(high) << 32 | u64::from(low), peer }
}

struct Netlink(NetlinkSocket);

impl Netlink {
    fn open() -> io::Result<Self> {
        NetlinkSocket::open(NETLINK_SOCK_DIAG).map(Self)
    }

    /// All connected UDP sockets of a family.
    fn connected_udp(&mut self, family: u8) -> io::Result<Vec<InetResponseHeader>> {
        let all = if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() };
        let request = SockDiagMessage::InetRequest(request(family, all));
        self.0.send(NLM_F_REQUEST | NLM_F_DUMP, request.into())?;
        let mut found = Vec::new();
        loop {
            for payload in self.0.receive::<SockDiagMessage>()? {
                match payload {
                    NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                        found.push(response.header);
                    }
                    NetlinkPayload::Done(_) => return Ok(found),
                    // The kernel knows no UDP sockets of this family.
                    NetlinkPayload::Error(error) if is_absent(error.code) => return Ok(Vec::new()),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }

    /// False if the socket was gone already.
    fn destroy(&mut self, socket: InetResponseHeader) -> io::Result<bool> {
        let request = SockDiagMessage::InetRequest(request(socket.family, socket.socket_id));
        self.0.send(NLM_F_REQUEST | NLM_F_ACK, SockDiagDestroy::new(request).into())?;
        loop {
            for payload in self.0.receive::<SockDiagMessage>()? {
                match payload {
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(true),
                    NetlinkPayload::Error(error) if is_absent(error.code) => return Ok(false),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }
}

fn request(family: u8, socket_id: SocketId) -> InetRequest {
    let (extensions, states) = (ExtensionFlags::empty(), StateFlags::ESTABLISHED);
    InetRequest { family, protocol: IPPROTO_UDP, extensions, states, socket_id }
}

fn is_absent(code: Option<NonZeroI32>) -> bool {
    code.is_some_and(|code| code.get() == -libc::ENOENT)
}

#[cfg(test)]
mod tests {
    use std::{
        net::{IpAddr, UdpSocket},
        os::fd::AsRawFd,
    };

    use super::*;

    fn cookie(socket: &UdpSocket) -> u64 {
        let mut cookie = 0u64;
        let mut len = size_of::<u64>() as libc::socklen_t;
        // SAFETY: the option writes a u64, for which there is room.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_COOKIE,
                (&raw mut cookie).cast(),
                &raw mut len,
            )
        };
        assert_eq!(result, 0);
        cookie
    }

    #[test]
    fn connected_sockets_are_recognised() {
        let mapped = |peer: SocketAddr| match peer {
            SocketAddr::V4(v4) => SocketAddr::new(IpAddr::V6(v4.ip().to_ipv6_mapped()), v4.port()),
            v6 => v6,
        };
        let server = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let peer = server.local_addr().expect("address");
        for (own, to) in [("127.0.0.1:0", peer), ("[::]:0", mapped(peer))] {
            let client = UdpSocket::bind(own).expect("bind");
            client.connect(to).expect("connect");
            let family = if to.is_ipv4() { AF_INET } else { AF_INET6 };
            let found = Netlink::open().and_then(|mut netlink| netlink.connected_udp(family)).expect("dump");
            let wanted = StaleSocket { cookie: cookie(&client), peer };
            assert!(found.iter().any(|socket| identity(&socket.socket_id) == wanted), "{found:?}");
        }
    }
}
