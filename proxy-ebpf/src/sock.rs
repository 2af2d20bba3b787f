//! Socket LB: translation when a program connects or sends, so that no packet is ever
//! rewritten.
//!
//! What must be dropped is left alone here: the packet path drops it, in silence.

mod ask;
mod client;
mod connect;
mod datagrams;
mod exempt;
mod place;
mod send;
mod show;

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};
use proxy_common::proto;

pub use self::place::{Mapped, Place, V4, V6, port};
use self::{connect::connect, place::Call, send::send, show::show};

/// The hook lets the call go on.
pub const ALLOW: i32 = 1;
/// The hook makes the call fail.
pub const REFUSE: i32 = 0;

macro_rules! hooks {
    ($($name:ident: $hook:ident => $step:ident, $family:ident;)+) => {$(
        #[cgroup_sock_addr($hook)]
        pub fn $name(ctx: SockAddrContext) -> i32 {
            hooks!(@$family &ctx, $step)
        }
    )+};
    (@v4 $ctx:expr, $step:ident) => { at::<V4>($ctx, $step) };
    (@v6 $ctx:expr, $step:ident) => {
        if Mapped::is_in((*$ctx).sock_addr) { at::<Mapped>($ctx, $step) } else { at::<V6>($ctx, $step) }
    };
}

hooks! {
    sock_connect4: connect4 => connect, v4;
    sock_connect6: connect6 => connect, v6;
    sock_sendmsg4: sendmsg4 => send, v4;
    sock_sendmsg6: sendmsg6 => send, v6;
    sock_recvmsg4: recvmsg4 => show, v4;
    sock_recvmsg6: recvmsg6 => show, v6;
    sock_getpeername4: getpeername4 => show, v4;
    sock_getpeername6: getpeername6 => show, v6;
}

#[inline(always)]
fn at<P: Place>(ctx: &SockAddrContext, step: impl Fn(&Call<P>) -> i32) -> i32 {
    let call = Call::<P>::new(ctx);
    if call.proto == proto::TCP || call.proto == proto::UDP { step(&call) } else { ALLOW }
}
