//! Callers that the packet path serves instead.

use aya_ebpf::helpers::generated as helper;
use proxy_common::maps::{settings::flags::NONE_EXEMPT, socket_lb_exempt::DEPTH};

use crate::{global::global_functions, maps};

/// How the names begin that the kernel gives the threads of its work queues.
const KERNEL_WORKER: u64 = u64::from_ne_bytes(*b"kworker/");

/// True when the packet path serves the caller instead: its pod has opted out, or it is a
/// worker of the kernel, such as an NFS client's, which keeps addresses for itself and is
/// not prepared for errors of ours.
#[inline(always)]
pub fn is_exempt() -> bool {
    shunt_caller_is_exempt() != 0
}

global_functions! {
    fn shunt_caller_is_exempt() = caller_is_exempt;
}

#[inline(always)]
fn caller_is_exempt() -> u32 {
    // Who takes this name without being one only opts out.
    (in_exempt_cgroup() || name_begins() == KERNEL_WORKER).into()
}

/// The first eight bytes of the thread's name.
#[inline(always)]
fn name_begins() -> u64 {
    // Aligned, for one comparison.
    let mut name = [0u64; 2];
    // SAFETY: the helper writes as many bytes as it is told, a name of 16 bytes at most (TASK_COMM_LEN).
    unsafe { helper::bpf_get_current_comm(name.as_mut_ptr().cast(), size_of_val(&name) as u32) };
    name[0]
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
