//! Entry point in the driver's hook of node edges.

use aya_ebpf::{
    Global,
    bindings::xdp_action::{XDP_ABORTED, XDP_PASS, XDP_TX},
    helpers::generated as helper,
    macros::xdp,
    programs::XdpContext,
};
use proxy_common::{DropReason, Ip4, Ip6, maps::devices::flags, packet::Wire as _};

use crate::{
    maps,
    packet::{Frame, Framing, Packet as _, Tagged, Untagged},
    pipeline::{Family, driver::forward},
    stage::output::{How, Output},
};

/// XDP may be on virtual cables. Set when the program is loaded; zero costs nothing.
#[unsafe(no_mangle)]
static CABLES: Global<u8> = Global::new(0);

/// EtherType of a VLAN tag (IEEE 802.1Q).
const VLAN: u16 = 0x8100;

/// Forwards what only passes through this node; all else goes up to the tc programs.
#[xdp(frags)]
#[inline(always)]
pub fn shunt_xdp(ctx: XdpContext) -> u32 {
    let frame = Frame::<Untagged>::new(&ctx);
    match frame.ether_type() {
        VLAN => by_family(&Frame::<Tagged>::new(&ctx)),
        _ => by_family(&frame),
    }
}

#[inline(always)]
fn by_family<F: Framing>(frame: &Frame<F>) -> u32 {
    match frame.ether_type() {
        Ip4::ETHER_TYPE => forwarded::<F, Ip4>(frame),
        Ip6::ETHER_TYPE => forwarded::<F, Ip6>(frame),
        _ => XDP_PASS,
    }
}

/// Not inlined: the stack has no room for that of all framings and families side by side.
#[inline(never)]
fn forwarded<F: Framing, A: Family>(frame: &Frame<F>) -> u32 {
    act(frame.ifindex(), forward::<F, A>(frame))
}

/// Turns what becomes of a frame into XDP's action.
#[inline(always)]
fn act(own: u32, Output { how, ifindex }: Output) -> u32 {
    match how {
        How::Continue => XDP_PASS,
        How::Transmit if ifindex == own && !is_cable(own) => XDP_TX,
        // SAFETY: the helper only notes the device; the kernel checks it when the program has ended.
        How::Transmit => (unsafe { helper::bpf_redirect(ifindex, 0) }) as u32,
        _ => {
            maps::count_drop(DropReason::RewriteFailed);
            XDP_ABORTED
        }
    }
}

#[inline(always)]
fn is_cable(ifindex: u32) -> bool {
    CABLES.load() != 0 && maps::device(ifindex).is_some_and(|device| device.flags & flags::CABLE != 0)
}
