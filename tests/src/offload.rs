//! What a device leaves to hardware. A veth that stands for a wire must leave nothing: a
//! frame that a program in the driver's hook reads has its checksum and its VLAN tag, as on
//! a wire, and frames that such a program sends are taken at the other end.

use crate::netns::Namespace;
use anyhow::{Context, Result};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::{io::Error, os::fd::AsRawFd};

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// Of linux/ethtool.h.
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETH_FLAG_TXVLAN: u32 = 1 << 7;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    cmd: u32,
    data: u32,
}

/// Makes the end called `device` of a cable behave as the far end of a wire: it computes
/// checksums, tags frames itself, and with `takes_frames` takes what a program in the other
/// end's driver sends.
pub fn as_wire(netns: &Namespace, device: &str, takes_frames: bool) -> Result<()> {
    netns.run(|| {
        set(device, ETHTOOL_STXCSUM, 0)?;
        set(device, ETHTOOL_SGRO, takes_frames.into())?;
        flags(device, ETH_FLAG_TXVLAN | ETH_FLAG_RXVLAN)
    })
}

fn flags(device: &str, off: u32) -> Result<()> {
    let held = set(device, ETHTOOL_GFLAGS, 0)?;
    set(device, ETHTOOL_SFLAGS, held & !off).map(drop)
}

/// Gives a command and returns the value the kernel left.
fn set(device: &str, cmd: u32, data: u32) -> Result<u32> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::empty(), None)?;
    let mut value = Value { cmd, data };
    // SAFETY: integers, arrays and a union of such; zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(device.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the kernel reads the request and writes to `value`, which outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result != 0 {
        return Err(Error::last_os_error()).with_context(|| format!("ethtool command {cmd:#x} on {device}"));
    }
    Ok(value.data)
}
