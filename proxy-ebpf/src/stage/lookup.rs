//! Destination → frontend.

use proxy_common::{
    DropReason,
    maps::{
        address_filter::flags::{BACKEND, FRONTEND},
        frontends::{Frontend, FrontendKey},
        node_addresses::flags::NODE_PORTS,
        settings::flags::SERVICE_CIDRS,
    },
};

use super::select::Refusal;
use crate::maps::{self, Tables};

/// False if nothing that enters with this destination can be ours.
#[inline(always)]
pub fn may_enter<A: Tables>(dst: &A) -> bool {
    maps::address_bits(dst) & FRONTEND != 0 || in_service_cidr(dst)
}

/// False if nothing that leaves from `src` to `dst` can be ours.
#[inline(always)]
pub fn may_leave<A: Tables>(src: &A, dst: &A) -> bool {
    maps::address_bits(src) & BACKEND != 0
        || maps::address_bits(dst) & (BACKEND | FRONTEND) != 0
        || in_service_cidr(dst)
}

#[inline(always)]
fn in_service_cidr<A: Tables>(addr: &A) -> bool {
    maps::settings().is_some_and(|s| s.flags & SERVICE_CIDRS != 0) && maps::in_service_cidr(addr)
}

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
    if in_service_cidr(&addr) {
        return Err(DropReason::UnallocatedAddress.into());
    }
    Ok(None)
}
