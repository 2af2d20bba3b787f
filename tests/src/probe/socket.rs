//! Socket options the standard library does not know, and errors as outcomes.

use super::{Outcome, Proto};
use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, RawFd},
};

/// A socket that may use any address as its own, whether the namespace has it or not:
/// routes decide which packets get here.
pub(super) fn open(family_of: IpAddr, proto: Proto) -> Result<Socket> {
    let v4 = family_of.is_ipv4();
    let (kind, protocol) = match proto {
        Proto::Tcp | Proto::Http => (Type::STREAM, Protocol::TCP),
        Proto::Udp => (Type::DGRAM, Protocol::UDP),
        Proto::Sctp => (Type::RAW, Protocol::from(libc::IPPROTO_SCTP)),
        Proto::Icmp if v4 => (Type::RAW, Protocol::ICMPV4),
        Proto::Icmp => (Type::RAW, Protocol::ICMPV6),
    };
    let domain = if v4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket =
        Socket::new(domain, kind, Some(protocol)).with_context(|| format!("open a {proto} socket"))?;
    let fd = socket.as_raw_fd();
    if v4 {
        set(fd, libc::SOL_IP, libc::IP_TRANSPARENT)?;
        set(fd, libc::SOL_IP, libc::IP_RECVERR)?;
    } else {
        set(fd, libc::SOL_IPV6, libc::IPV6_TRANSPARENT)?;
        set(fd, libc::SOL_IPV6, libc::IPV6_RECVERR)?;
        if kind != Type::RAW {
            socket.set_only_v6(true)?;
        }
    }
    Ok(socket)
}

/// Tells of each datagram which address it was sent to.
pub(super) fn want_destination(socket: &Socket, family_of: IpAddr) -> Result<()> {
    let fd = socket.as_raw_fd();
    if family_of.is_ipv4() {
        set(fd, libc::SOL_IP, libc::IP_PKTINFO)
    } else {
        set(fd, libc::SOL_IPV6, libc::IPV6_RECVPKTINFO)
    }
}

/// Leaves the choice of the source port to `connect`, which allows as many connections
/// as there are ports towards each destination.
pub(super) fn choose_port_at_connect(socket: &Socket) -> Result<()> {
    set(socket.as_raw_fd(), libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT)
}

/// Lets a socket hold this many bytes that its thread has not read, whatever the system's limit.
pub(super) fn hold(socket: &Socket, bytes: libc::c_int) -> Result<()> {
    set_to(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
}

fn set(fd: RawFd, level: libc::c_int, name: libc::c_int) -> Result<()> {
    set_to(fd, level, name, 1)
}

fn set_to(fd: RawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> Result<()> {
    // SAFETY: the option's value is an int that lives across the call.
    let result = unsafe {
        libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of_val(&value) as libc::socklen_t)
    };
    if result != 0 {
        return Err(io::Error::last_os_error()).with_context(|| format!("set socket option {level}/{name}"));
    }
    Ok(())
}

/// Port `port` of the unspecified address of a family.
pub(super) fn any(family_of: IpAddr, port: u16) -> SocketAddr {
    match family_of {
        IpAddr::V4(_) => SocketAddr::from(([0; 4], port)),
        IpAddr::V6(_) => SocketAddr::from(([0u16; 8], port)),
    }
}

/// Reads an error of a socket call as what it tells about the network.
pub(super) fn outcome_of(error: &io::Error, during: &str) -> Outcome {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENOPROTOOPT) => {
            Outcome::Refused
        }
        Some(libc::ETIMEDOUT | libc::EAGAIN) => Outcome::TimedOut,
        // What a packet filter on the way out of the host makes of a dropped datagram, and what a
        // program on the device does, for those who want to know of errors.
        Some(libc::EPERM | libc::ENOBUFS) => Outcome::Dropped,
        _ if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => Outcome::TimedOut,
        _ => Outcome::Failed(format!("{during}: {error}")),
    }
}
