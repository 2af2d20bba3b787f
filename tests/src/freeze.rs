//! Pinned maps that nobody writes any more: writes that should work fail.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
};

use anyhow::{Context as _, Result};
use aya::maps::MapData;

/// `BPF_MAP_FREEZE` of `enum bpf_cmd` (linux/bpf.h).
const BPF_MAP_FREEZE: libc::c_long = 22;

/// Has the kernel refuse every write by a system call from here on (bpf(2)). That lasts as long as the map.
///
/// # Errors
/// When the map cannot be opened, or somebody has it mapped for writing.
pub fn freeze(pin: &Path) -> Result<()> {
    let map = MapData::from_pin(pin).with_context(|| format!("open {}", pin.display()))?;
    let map_fd = map.fd().as_fd().as_raw_fd();
    // SAFETY: the command reads the first field of `union bpf_attr`, the descriptor, and takes what is not passed
    // for zero.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_FREEZE, &raw const map_fd, size_of_val(&map_fd)) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error()).context(format!("freeze {}", pin.display()))
    }
}
