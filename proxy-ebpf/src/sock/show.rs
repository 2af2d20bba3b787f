//! A program asks whom a socket speaks to.

use proxy_common::proto;

use super::{
    ALLOW,
    client::socket,
    datagrams::frontend_of,
    place::{Call, Place},
};
use crate::maps;

#[inline(always)]
pub fn show<P: Place>(call: &Call<P>) -> i32 {
    let shown = &call.peer;
    if call.proto != proto::TCP {
        if let Some(frontend) = frontend_of(call) {
            call.replace(&frontend.addr, frontend.port);
        }
    } else if let Some(pair) = maps::socket_peer::<P::Addr>(socket(call.ctx))
        && pair.backend == shown.addr
        && pair.backend_port == shown.port
    {
        call.replace(&pair.frontend, pair.frontend_port);
    }
    ALLOW
}
