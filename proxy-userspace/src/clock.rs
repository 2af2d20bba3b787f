//! The clock of the datapath, by which the tables of connections tell time.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, which is `bpf_ktime_get_ns`, in nanoseconds.
pub fn monotonic_nanos() -> nix::Result<u64> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    // 584 years of uptime fit.
    Ok(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}
