//! Destination → frontend.

use proxy_common::{
    DropReason,
    maps::{
        frontends::{Frontend, FrontendKey},
        node_addresses::flags::NODE_PORTS,
    },
};

use crate::maps::{self, Tables};

/// What a destination is to us.
pub enum Lookup {
    /// A service answers here.
    Frontend(&'static Frontend),
    /// Nobody answers here, and the client is told so.
    Reject(DropReason),
    /// Nobody answers here.
    Drop(DropReason),
    /// Not ours.
    None,
}

#[inline(always)]
pub fn lookup<A: Tables>(addr: A, port: u16, proto: u8) -> Lookup {
    let mut key = FrontendKey { addr, port, proto, pad: 0 };
    if let Some(frontend) = maps::frontend(&key) {
        return Lookup::Frontend(frontend);
    }
    let owned = maps::node_address(&addr);
    if let Some(flags) = owned {
        if flags & NODE_PORTS != 0 {
            key.addr = A::default();
            if let Some(frontend) = maps::frontend(&key) {
                return Lookup::Frontend(frontend);
            }
        }
        // Whatever else the host serves on its own address is the host's business.
        return Lookup::None;
    }
    key = FrontendKey { addr, port: 0, proto: 0, pad: 0 };
    if maps::frontend(&key).is_some() {
        return Lookup::Reject(DropReason::UnknownPort);
    }
    if maps::in_service_cidr(&addr) {
        return Lookup::Drop(DropReason::UnallocatedAddress);
    }
    Lookup::None
}
