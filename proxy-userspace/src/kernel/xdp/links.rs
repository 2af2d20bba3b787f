//! The pinned links that hold the program at devices: their names and their end.

use std::{fs, os::fd::AsFd, path::Path};

use crate::kernel::{bpf, host::XdpTarget, pins::Pins};

const PREFIX: &str = "xdp-";

/// Name of a device's pin. The index and not the name: names may be changed.
pub(super) fn pin(ifindex: u32) -> String {
    format!("{PREFIX}{ifindex}")
}

/// Detaches the program from every device that is not wanted.
pub(super) fn detach_others(pins: &Pins, wanted: &[XdpTarget]) {
    for pin in pins.links().unwrap_or_default() {
        let ifindex = pin.strip_prefix(PREFIX).and_then(|rest| rest.parse::<u32>().ok());
        if ifindex.is_some_and(|ifindex| wanted.iter().all(|target| target.ifindex != ifindex))
            && end(&pins.link(&pin))
        {
            tracing::info!(ifindex, "XDP detached");
        }
    }
}

/// Removes our program from the device called `name`; returns what was there.
pub(in crate::kernel) fn detach(pins: &Pins, ifindex: u32, name: &str) -> Option<String> {
    end(&pins.link(&pin(ifindex))).then(|| format!("XDP program of {name}"))
}

/// Takes over the links of another generation as they are: they hold its program until they are
/// given another.
///
/// # Errors
/// When a link cannot be pinned.
pub(in crate::kernel) fn adopt_pins(from: &Pins, to: &Pins) -> std::io::Result<()> {
    for pin in from.links()?.iter().filter(|pin| pin.starts_with(PREFIX)) {
        let link = bpf::link_open(&from.link(pin))?;
        match bpf::link_pin(link.as_fd(), &to.link(pin)) {
            // An earlier attempt was cut short.
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::remove_file(from.link(pin))?;
    }
    Ok(())
}

/// Detaches and forgets a link; false if there was none.
pub(super) fn end(pin: &Path) -> bool {
    if let Ok(link) = bpf::link_open(pin) {
        // A link whose device is gone has nothing to detach from.
        let _ = bpf::link_detach(link.as_fd());
    }
    fs::remove_file(pin).is_ok()
}
