//! Entry points at tc ingress and egress of every edge, and the programs they go on in
//! (`maps::tail_call`), whose names are those of `proxy_common::maps::tails`.

use core::arch::asm;

use aya_ebpf::{
    bindings::{BPF_F_INGRESS, TC_ACT_SHOT, TC_ACT_UNSPEC},
    helpers::generated as helper,
    macros::classifier,
    programs::TcContext,
};
use aya_log_ebpf::debug;
use proxy_common::{Ip4, Ip6, packet::Wire as _};

use crate::{
    maps,
    packet::{Ethernet, Layer3, Packet as _, Skb},
    pipeline::{Verdict, direct, dsr, egress, end, fragment, icmp, ingress, lost, open, refuse},
    stage::output::{How, Output},
};

macro_rules! entry_points {
    ($($(#[$doc:meta])+ $name:ident: $link:ty, $($pipeline:ident)::+;)+) => {$(
        $(#[$doc])+
        #[classifier]
        #[inline(always)]
        pub fn $name(ctx: TcContext) -> i32 {
            let packet = Skb::<$link>::new(&ctx);
            let verdict = match packet.ether_type() {
                Ip4::ETHER_TYPE => $($pipeline)::+::<_, Ip4>(&packet),
                Ip6::ETHER_TYPE => $($pipeline)::+::<_, Ip6>(&packet),
                _ => return TC_ACT_UNSPEC,
            };
            act(&ctx, packet.ifindex(), verdict)
        }
    )+};
}

entry_points! {
    /// Into the stack, from a device with an Ethernet header.
    shunt_in: Ethernet, ingress;
    /// Out of the stack, to a device with an Ethernet header.
    shunt_out: Ethernet, egress;
    /// Into the stack, from a device without a link-layer header.
    shunt_in_l3: Layer3, ingress;
    /// Out of the stack, to a device without a link-layer header.
    shunt_out_l3: Layer3, egress;

    /// Connections to backends themselves, where `shunt_in` goes on.
    shunt_in_direct: Ethernet, direct::ingress;
    /// Connections to backends themselves, where `shunt_out` goes on.
    shunt_out_direct: Ethernet, direct::egress;
    /// Connections to backends themselves, where `shunt_in_l3` goes on.
    shunt_in_direct_l3: Layer3, direct::ingress;
    /// Connections to backends themselves, where `shunt_out_l3` goes on.
    shunt_out_direct_l3: Layer3, direct::egress;

    /// New connections, where `shunt_in` goes on.
    shunt_in_open: Ethernet, open::ingress;
    /// New connections, where `shunt_out` goes on.
    shunt_out_open: Ethernet, open::egress;
    /// New connections, where `shunt_in_l3` goes on.
    shunt_in_open_l3: Layer3, open::ingress;
    /// New connections, where `shunt_out_l3` goes on.
    shunt_out_open_l3: Layer3, open::egress;

    /// Refusals, where `shunt_in` goes on.
    shunt_in_refuse: Ethernet, refuse::ingress;
    /// Refusals, where `shunt_out` goes on.
    shunt_out_refuse: Ethernet, refuse::egress;
    /// Refusals, where `shunt_in_l3` goes on.
    shunt_in_refuse_l3: Layer3, refuse::ingress;
    /// Refusals, where `shunt_out_l3` goes on.
    shunt_out_refuse_l3: Layer3, refuse::egress;

    /// Rows that are lost, where `shunt_in` goes on.
    shunt_in_lost: Ethernet, lost::ingress;
    /// Rows that are lost, where `shunt_out` goes on.
    shunt_out_lost: Ethernet, lost::egress;
    /// Rows that are lost, where `shunt_in_l3` goes on.
    shunt_in_lost_l3: Layer3, lost::ingress;
    /// Rows that are lost, where `shunt_out_l3` goes on.
    shunt_out_lost_l3: Layer3, lost::egress;

    /// Packets that may end their connection, where `shunt_in` goes on.
    shunt_in_end: Ethernet, end::ingress;
    /// Packets that may end their connection, where `shunt_out` goes on.
    shunt_out_end: Ethernet, end::egress;
    /// Packets that may end their connection, where `shunt_in_l3` goes on.
    shunt_in_end_l3: Layer3, end::ingress;
    /// Packets that may end their connection, where `shunt_out_l3` goes on.
    shunt_out_end_l3: Layer3, end::egress;

    /// Packets inside others, where `shunt_in` goes on.
    shunt_in_dsr: Ethernet, dsr::ingress;
    /// Packets inside others, where `shunt_in_l3` goes on.
    shunt_in_dsr_l3: Layer3, dsr::ingress;
    /// Fragments, where `shunt_in` goes on.
    shunt_in_fragment: Ethernet, fragment::ingress;
    /// Fragments, where `shunt_out` goes on.
    shunt_out_fragment: Ethernet, fragment::egress;
    /// Fragments, where `shunt_in_l3` goes on.
    shunt_in_fragment_l3: Layer3, fragment::ingress;
    /// Fragments, where `shunt_out_l3` goes on.
    shunt_out_fragment_l3: Layer3, fragment::egress;

    /// ICMP, where `shunt_in` goes on.
    shunt_in_icmp: Ethernet, icmp::ingress;
    /// ICMP, where `shunt_out` goes on.
    shunt_out_icmp: Ethernet, icmp::egress;
    /// ICMP, where `shunt_in_l3` goes on.
    shunt_in_icmp_l3: Layer3, icmp::ingress;
    /// ICMP, where `shunt_out_l3` goes on.
    shunt_out_icmp_l3: Layer3, icmp::egress;
}

/// Turns a verdict into tc's action. `TC_ACT_UNSPEC` leaves the packet to the programs
/// after ours, at TCX as with clsact filters.
#[inline(always)]
fn act(ctx: &TcContext, ifindex: u32, verdict: Verdict) -> i32 {
    if let Some(reason) = verdict.refused {
        maps::count_refusal(verdict.service, reason);
        debug!(ctx, "refused a packet on interface {}: reason {}", ifindex, reason as u32);
    }
    let Output { how, ifindex } = verdict.output;
    // SAFETY: the helpers only note the interface; the kernel checks it when the program has ended.
    let action = unsafe {
        match how {
            How::Continue => return unforeseen(TC_ACT_UNSPEC),
            How::Drop => return TC_ACT_SHOT,
            How::Neighbour => helper::bpf_redirect_neigh(ifindex, core::ptr::null_mut(), 0, 0),
            How::Transmit => helper::bpf_redirect(ifindex, 0),
            How::Receive => helper::bpf_redirect(ifindex, u64::from(BPF_F_INGRESS)),
        }
    };
    action as i32
}

/// `action`, which the compiler cannot foresee. What a program returns that leaves the packet to another is
/// what that one returns; but where all that is written here returns the same, the compiler would have the
/// entry point return it, whatever its body, which is a function of its own, does.
#[inline(always)]
fn unforeseen(action: i32) -> i32 {
    let mut action = i64::from(action);
    // SAFETY: one instruction that changes nothing.
    unsafe { asm!("{0} |= 0", inout(reg) action, options(pure, nomem, nostack)) };
    action as i32
}
