//! XDP at devices: what is asked for, what came of it and why. `programs` attaches, `ask`
//! and `netdev` put questions to the kernel; which devices are meant is decided in `host`.

mod ask;
mod links;
mod netdev;
mod programs;

use aya_obj::generated::{XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE};
use proxy_common::maps::device_status::{DeviceStatus, configured, mode};

pub(super) use self::{
    ask::in_force,
    links::{adopt_pins, detach},
    programs::{Program, Programs},
};

/// Whether XDP is to be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpPolicy {
    /// Not at all.
    #[default]
    Off,
    /// Where the driver of a real device offers it.
    Auto,
    /// Where the driver offers it, on virtual cables too; a warning where it does not.
    Native,
    /// By the stack where the driver does not offer it.
    Generic,
}

impl XdpPolicy {
    /// Whether virtual cables are taken for wires.
    pub(super) fn takes_cables(self) -> bool {
        matches!(self, XdpPolicy::Native | XdpPolicy::Generic)
    }

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            XdpPolicy::Off => "off",
            XdpPolicy::Auto => "auto",
            XdpPolicy::Native => "native",
            XdpPolicy::Generic => "generic",
        }
    }
}

/// Who runs the program of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// Nobody.
    #[default]
    None,
    /// The stack, on a packet it has made already.
    Generic,
    /// The driver.
    Native,
}

impl XdpMode {
    /// Every mode.
    pub const ALL: [XdpMode; 3] = [XdpMode::None, XdpMode::Generic, XdpMode::Native];

    /// The word in tables and logs.
    pub fn name(self) -> &'static str {
        match self {
            XdpMode::None => "none",
            XdpMode::Generic => "generic",
            XdpMode::Native => "native",
        }
    }

    /// `XDP_FLAGS_*` that ask for it.
    fn flags(self) -> u32 {
        match self {
            XdpMode::None => 0,
            XdpMode::Generic => XDP_FLAGS_SKB_MODE,
            XdpMode::Native => XDP_FLAGS_DRV_MODE,
        }
    }
}

/// An XDP program on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpInForce {
    /// Who runs it.
    pub mode: XdpMode,
    /// Its id.
    pub program: u32,
}

/// What became of XDP on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpStatus {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name.
    pub interface: String,
    /// What was asked for.
    pub configured: XdpPolicy,
    /// What is in force.
    pub mode: XdpMode,
    /// Why the mode is not native, or which device serves this one; else empty.
    pub reason: String,
}

impl XdpStatus {
    /// The row of `device_status`.
    pub(super) fn row(&self) -> (u32, DeviceStatus) {
        let configured = match self.configured {
            XdpPolicy::Off => configured::OFF,
            XdpPolicy::Auto => configured::AUTO,
            XdpPolicy::Native => configured::NATIVE,
            XdpPolicy::Generic => configured::GENERIC,
        };
        let mode = match self.mode {
            XdpMode::None => mode::NONE,
            XdpMode::Generic => mode::GENERIC,
            XdpMode::Native => mode::NATIVE,
        };
        (self.ifindex, DeviceStatus::new(configured, mode, &self.reason))
    }

    /// The status a row tells of; `interface` is the name the device has now.
    pub(super) fn read(ifindex: u32, interface: String, row: &DeviceStatus) -> Self {
        let configured = match row.configured {
            configured::AUTO => XdpPolicy::Auto,
            configured::NATIVE => XdpPolicy::Native,
            configured::GENERIC => XdpPolicy::Generic,
            _ => XdpPolicy::Off,
        };
        let mode = match row.mode {
            mode::GENERIC => XdpMode::Generic,
            mode::NATIVE => XdpMode::Native,
            _ => XdpMode::None,
        };
        Self { ifindex, interface, configured, mode, reason: row.reason().to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_its_row() {
        for configured in [XdpPolicy::Off, XdpPolicy::Auto, XdpPolicy::Native, XdpPolicy::Generic] {
            for mode in XdpMode::ALL {
                let (interface, reason) = ("eth0".to_owned(), "no driver".to_owned());
                let status = XdpStatus { ifindex: 7, interface, configured, mode, reason };
                let (ifindex, row) = status.row();
                assert_eq!(XdpStatus::read(ifindex, "eth0".into(), &row), status);
            }
        }
    }
}
