//! Entry point at the driver of every node edge, before the stack sees a packet.

use aya_ebpf::{bindings::xdp_action::XDP_PASS, macros::xdp, programs::XdpContext};

/// Into the driver of a device with an Ethernet header.
#[xdp(frags)]
pub fn shunt_xdp(_ctx: XdpContext) -> u32 {
    XDP_PASS
}
