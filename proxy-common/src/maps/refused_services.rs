//! `refused_services`: hash, Service → why there is no room for what is wanted of it. Programs never read it; it lets
//! `shunt service list` give the reason while no agent runs.

use super::{
    assert_size, pod,
    text::{padded, text},
};

/// Number of Services that are told of.
pub const CAPACITY: u32 = 1_024;

/// Room for `namespace/name`: a DNS label each.
pub const NAME_LEN: usize = 128;

/// Room for the reason, which is cut where it is longer.
pub const REASON_LEN: usize = 184;

/// A Service.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefusedKey {
    /// `namespace/name`; UTF-8, zero-padded, cut where it is longer.
    pub name: [u8; NAME_LEN],
}

/// What became of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefusedService {
    /// Why there is no room; UTF-8, zero-padded.
    pub reason: [u8; REASON_LEN],
}

assert_size!(RefusedKey = 128, RefusedService = 184);
pod!(RefusedKey, RefusedService);

impl RefusedKey {
    /// The key of a Service, with as much of its name as fits.
    pub fn new(name: &str) -> Self {
        Self { name: padded(name) }
    }

    /// The name, as far as it is UTF-8.
    pub fn name(&self) -> &str {
        text(&self.name)
    }
}

impl RefusedService {
    /// A row with as much of `reason` as fits.
    pub fn new(reason: &str) -> Self {
        Self { reason: padded(reason) }
    }

    /// The reason, as far as it is UTF-8.
    pub fn reason(&self) -> &str {
        text(&self.reason)
    }
}
