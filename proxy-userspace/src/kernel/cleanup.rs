//! Removes what agents have left, whether one runs or not.

use std::{collections::BTreeMap, path::Path};

use super::{
    KernelError, attach, generations::Generations, host::LOOPBACK, loopback, object, pins::Pins, sockets, xdp,
};

/// Removes every trace: programs, links, maps, pins. Returns what was there. Connections
/// that were being translated end.
///
/// # Errors
/// When a pin cannot be removed.
pub fn cleanup(bpffs: &Path, links: &BTreeMap<u32, String>) -> Result<Vec<String>, KernelError> {
    let generations = Generations::below(bpffs);
    let mut removed = Vec::new();
    // Filters of a clsact qdisc have no pin.
    let all = generations.all()?.into_iter().chain([Pins::new(bpffs)]);
    for pins in all {
        for (ifindex, name) in links {
            removed.extend(xdp::detach(&pins, *ifindex, name));
            removed.extend(attach::detach(&pins, *ifindex, name));
            if *ifindex == LOOPBACK && removed.iter().any(|r| r.contains(&format!("program of {name} "))) {
                loopback::accept_own_sources(false);
            }
        }
        removed.extend(sockets::detach(&pins, &object::SOCKET_HOOKS));
        removed.extend(sockets::detach(&pins, &object::BIND_HOOKS));
    }
    if generations.remove()? {
        removed.push(format!("pinned maps below {}", bpffs.display()));
    }
    Ok(removed)
}
