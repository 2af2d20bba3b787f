//! `device_status`: hash, interface index → what became of XDP on the device. Programs never
//! read it; it lets `shunt check` give the reason while no agent runs.

use super::{
    assert_size, pod,
    text::{padded, text},
};

/// Number of devices that are told of: node edges and the devices under them.
pub const CAPACITY: u32 = 1_024;

/// Room for the reason, which is cut where it is longer.
pub const REASON_LEN: usize = 184;

/// A device that was to carry the XDP program.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceStatus {
    /// One of [`configured`].
    pub configured: u32,
    /// One of [`mode`].
    pub mode: u32,
    /// Why the mode is not the one that was asked for; UTF-8, zero-padded.
    pub reason: [u8; REASON_LEN],
}

/// Values of [`DeviceStatus::configured`]: the words of `xdp` in ShuntConfiguration.
pub mod configured {
    /// No XDP.
    pub const OFF: u32 = 0;
    /// Where the driver offers it.
    pub const AUTO: u32 = 1;
    /// By the driver, or a warning.
    pub const NATIVE: u32 = 2;
    /// By the driver, else by the stack.
    pub const GENERIC: u32 = 3;
}

/// Values of [`DeviceStatus::mode`].
pub mod mode {
    /// The program is not attached.
    pub const NONE: u32 = 0;
    /// The stack runs it, on a packet it has made already.
    pub const GENERIC: u32 = 1;
    /// The driver runs it.
    pub const NATIVE: u32 = 2;
}

assert_size!(DeviceStatus = 192);
pod!(DeviceStatus);

impl DeviceStatus {
    /// A row with as much of `reason` as fits.
    pub fn new(configured: u32, mode: u32, reason: &str) -> Self {
        Self { configured, mode, reason: padded(reason) }
    }

    /// The reason, as far as it is UTF-8.
    pub fn reason(&self) -> &str {
        text(&self.reason)
    }
}
