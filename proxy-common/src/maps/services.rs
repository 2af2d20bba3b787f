//! `services`: hash, service id → the name people know it by. The datapath never reads
//! it; it lets `shunt` and `bpftool` name things while no agent runs, and gives ids back
//! to the services that had them when the agent returns.

use super::{assert_size, pod, text::text};

/// Number of service ports that the map begins with, unless configured.
pub const CAPACITY: u32 = 16_384;

/// Number of service ports to which it grows, unless much is configured.
pub const MOST: u32 = 2_097_152;

/// Room for `namespace/name:port`, each part at most 63 bytes.
pub const NAME_LEN: usize = 192;

/// A service port. Its name is not terminated when it fills the array.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServiceRow {
    /// `namespace/name:port`, or `namespace/name` for an unnamed port; UTF-8, zero-padded.
    pub name: [u8; NAME_LEN],
    /// IANA protocol number.
    pub proto: u8,
    /// Zero.
    pub pad: [u8; 3],
}

assert_size!(ServiceRow = 196);
pod!(ServiceRow);

impl ServiceRow {
    /// A row for `name`, or nothing when it does not fit.
    pub fn new(name: &str, proto: u8) -> Option<Self> {
        let mut row = Self { name: [0; NAME_LEN], proto, pad: [0; 3] };
        row.name.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(row)
    }

    /// The name, as far as it is UTF-8.
    pub fn name(&self) -> &str {
        text(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives() {
        for name in ["", "default/kubernetes:https", &"x".repeat(NAME_LEN)] {
            assert_eq!(ServiceRow::new(name, 6).expect("fits").name(), name);
        }
        assert!(ServiceRow::new(&"x".repeat(NAME_LEN + 1), 6).is_none());
    }
}
