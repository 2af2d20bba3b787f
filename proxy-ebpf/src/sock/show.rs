//! A program asks whom a socket speaks to.

use proxy_common::{maps::socket_flows::TO_FRONTEND, proto};

use super::{
    ALLOW,
    client::socket,
    flow,
    place::{Call, Place},
};
use crate::maps;

#[inline(always)]
pub fn show<P: Place>(call: &Call<P>) -> i32 {
    let shown = &call.peer;
    let stored = if call.proto == proto::TCP { maps::socket_peer::<P::Addr>(socket(call.ctx)) } else { None };
    if let Some(pair) = stored {
        if pair.backend == shown.addr && pair.backend_port == shown.port {
            call.replace(&pair.frontend, pair.frontend_port);
        }
    } else if let Some(flow) = maps::socket_flow(&flow::key(call, shown, TO_FRONTEND)) {
        // Also a TCP socket that an agent with layout 5 has connected.
        call.replace(&flow.addr, flow.port);
    }
    ALLOW
}
