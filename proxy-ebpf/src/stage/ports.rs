//! Source ports of connections that cannot keep their own.

use proxy_common::{
    DropReason, Tuple,
    flow::SourcePorts,
    hash,
    maps::{
        conntrack::{CtEntry, CtKey, flags::ANY_REPLY},
        settings::Settings,
    },
};

use crate::maps::{self, Tables};

/// Ports tried before a connection is given up: for a client whose own port is taken at the backend.
pub const REMAP_TRIES: u32 = 16;
/// For a masqueraded one, of which there are more.
pub const MASQUERADE_TRIES: u32 = 32;

/// Gives `forward` a source port that is free, and enters the row that its reply meets at `hook`. It gets the
/// one that it has had, if its other rows were lost or the client opens it anew. `key` is room for keys; the
/// hash is that of the connection.
///
/// # Errors
/// When none of the ports that are tried is free.
#[inline(always)]
pub fn claim<A: Tables>(
    forward: &mut Tuple<A>,
    hook: u8,
    reply: &mut CtEntry<A>,
    key: &mut CtKey<A>,
    (hash, tries): (u32, u32),
) -> Result<(), DropReason> {
    let mut ports = of(hash);
    key.set(&forward.reversed(), hook);
    key.dport = ports.port();
    let is_own = |known: &mut CtEntry<A>| known.role == reply.role && known.becomes_as(reply);
    if maps::conntrack(key).is_some_and(is_own) {
        reply.flags |= ANY_REPLY;
        forward.sport = key.dport;
        return maps::conntrack_put(key, reply);
    }
    for _ in 0..tries {
        key.dport = ports.port();
        if maps::conntrack_claim(key, reply) {
            forward.sport = key.dport;
            return Ok(());
        }
        ports.advance();
    }
    Err(DropReason::SnatPortsExhausted)
}

/// The source ports that a connection tries with this hash.
#[inline(always)]
pub fn of(hash: u32) -> SourcePorts {
    // There are settings: the map is an array of one. An Option of the ports would have fields that are not set,
    // which the compiler may move all the same.
    let range = |settings: &Settings| (settings.snat_port_first, settings.snat_port_count);
    let (first, count) = maps::settings().map_or((0, 1), range);
    SourcePorts::new(first, count, hash)
}

/// The hash of a connection by which this node finds its backend and source port again. `tuple` is that of
/// its packets where it comes by.
#[inline(always)]
pub fn hash<A: Tables>(tuple: &Tuple<A>) -> u32 {
    let secret = maps::settings().map_or([0; 2], |settings| settings.secret);
    hash::keyed(&secret, tuple)
}
