//! Destination → frontend.

use proxy_common::{
    DropReason,
    maps::{
        frontends::{Frontend, FrontendKey},
        node_addresses::flags::NODE_PORTS,
    },
};

use super::select::Refusal;
use crate::maps::{self, Tables};

/// The frontend at a destination, if it is ours at all.
///
/// # Errors
/// Why nobody may answer there.
#[inline(always)]
pub fn lookup<A: Tables>(addr: A, port: u16, proto: u8) -> Result<Option<&'static Frontend>, Refusal> {
    let mut key = FrontendKey { addr, port, proto, pad: 0 };
    let exact = maps::frontend(&key);
    if exact.is_some() {
        return Ok(exact);
    }
    if let Some(flags) = maps::node_address(&addr) {
        // Whatever else the host serves on its own address is the host's business.
        if flags & NODE_PORTS == 0 {
            return Ok(None);
        }
        key.addr = A::default();
        return Ok(maps::frontend(&key));
    }
    (key.port, key.proto) = (0, 0);
    if maps::frontend(&key).is_some() {
        return Err(Refusal::reject(DropReason::UnknownPort));
    }
    if maps::in_service_cidr(&addr) {
        return Err(DropReason::UnallocatedAddress.into());
    }
    Ok(None)
}
