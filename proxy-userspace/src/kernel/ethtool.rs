//! Settings of drivers, by ioctl(2).

use std::{io, mem::zeroed, net::UdpSocket, os::fd::AsRawFd};

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_GFLAGS` and `ETH_FLAG_RXVLAN` of linux/ethtool.h.
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    cmd: u32,
    data: u32,
}

/// Whether the driver of a device takes VLAN tags out of frames as they come in.
///
/// # Errors
/// When there is no such device.
pub(super) fn strips_vlan_tags(name: &str) -> io::Result<bool> {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    let mut value = Value { cmd: ETHTOOL_GFLAGS, data: 0 };
    // SAFETY: integers, arrays and a union of such; zero is a valid value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the kernel reads the request and writes to `value`, which outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } {
        0 => Ok(value.data & ETH_FLAG_RXVLAN != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_leaves_tags_alone_and_no_device_is_an_error() {
        assert!(!strips_vlan_tags("lo").unwrap());
        assert!(strips_vlan_tags("no such device").is_err());
    }
}
