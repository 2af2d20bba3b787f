//! Callers that the packet path serves instead.

use aya_ebpf::helpers::{bpf_get_current_comm, generated as helper};
use proxy_common::maps::{settings::flags::NONE_EXEMPT, socket_lb_exempt::DEPTH};

use crate::maps;

/// How the kernel names the threads of its work queues.
const KERNEL_WORKER: &[u8] = b"kworker/";

/// True when the packet path serves the caller instead: its pod has opted out, or it is a
/// worker of the kernel, such as an NFS client's, which keeps addresses for itself and is
/// not prepared for errors of ours.
#[inline(always)]
pub fn is_exempt() -> bool {
    // Who takes this name without being one only opts out.
    in_exempt_cgroup() || bpf_get_current_comm().is_ok_and(|name| name.starts_with(KERNEL_WORKER))
}

#[inline(always)]
fn in_exempt_cgroup() -> bool {
    if maps::settings().is_some_and(|settings| settings.flags & NONE_EXEMPT != 0) {
        return false;
    }
    for level in 1..=DEPTH {
        // SAFETY: the helper has no preconditions.
        let cgroup = unsafe { helper::bpf_get_current_ancestor_cgroup_id(level) };
        if cgroup == 0 {
            break;
        }
        if maps::is_exempt(cgroup) {
            return true;
        }
    }
    false
}
