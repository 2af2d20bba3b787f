//! Programs at devices: TCX links that are pinned, clsact filters where the kernel or the
//! operator wants them. Either survives the agent, and a new agent replaces the program
//! in place.

use std::{fs, io};

use aya::{
    Ebpf,
    programs::{
        LinkOrder, ProgramError, SchedClassifier, TcAttachType,
        links::{FdLink, PinnedLink},
        tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle},
    },
    util::KernelVersion,
};

use super::{error::KernelError, object, pins::Pins};

/// The first kernel with TCX.
const TCX_SINCE: KernelVersion = KernelVersion::new(6, 6, 0);
/// Place of our clsact filters, by which we find them again. Low priorities run first.
const PRIORITY: u16 = 0x7368;
const HANDLE: TcHandle = TcHandle::new(0, 1);

/// How programs are attached to devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcMode {
    /// TCX where the kernel has it, else clsact.
    #[default]
    Auto,
    /// TCX links (kernel 6.6).
    Tcx,
    /// Filters of a clsact qdisc.
    Clsact,
}

impl TcMode {
    /// Whether this kernel is attached to by TCX.
    pub(super) fn is_tcx(self) -> bool {
        match self {
            TcMode::Auto => KernelVersion::current().is_ok_and(|v| v >= TCX_SINCE),
            TcMode::Tcx => true,
            TcMode::Clsact => false,
        }
    }
}

/// A device that takes programs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name.
    pub name: String,
    /// Its packets begin with an Ethernet header.
    pub ethernet: bool,
}

/// Into the host's stack, or out of it.
#[derive(Clone, Copy)]
pub(super) struct Direction {
    attach_type: TcAttachType,
    name: &'static str,
}

/// In the order in which they are attached: what enters must find its way out translated.
pub(super) const DIRECTIONS: [Direction; 2] = [
    Direction { attach_type: TcAttachType::Egress, name: "egress" },
    Direction { attach_type: TcAttachType::Ingress, name: "ingress" },
];

impl Direction {
    fn program(self, ethernet: bool) -> &'static str {
        let [ingress, egress, ingress_l3, egress_l3] = object::CLASSIFIERS;
        match (self.name, ethernet) {
            ("ingress", true) => ingress,
            ("ingress", false) => ingress_l3,
            (_, true) => egress,
            (_, false) => egress_l3,
        }
    }

    /// Name of the link's pin. The index and not the name: names may be changed.
    fn pin(self, ifindex: u32) -> String {
        format!("tcx-{}-{ifindex}", self.name)
    }
}

/// Attaches the program of one direction to `target`, or replaces the one that an earlier
/// agent left there.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    pins: &Pins,
    mode: TcMode,
    target: &Target,
    direction: Direction,
) -> Result<(), KernelError> {
    let name = direction.program(target.ethernet);
    let program = object::program::<SchedClassifier>(ebpf, name)?;
    let attached = if mode.is_tcx() {
        attach_tcx(program, pins, target, direction)
    } else {
        attach_clsact(program, target, direction)
    };
    attached.map_err(|source| KernelError::Attach {
        program: name,
        target: format!("{} {}", target.name, direction.name),
        source,
    })
}

type AttachError = Box<dyn std::error::Error + Send + Sync>;

fn attach_tcx(
    program: &mut SchedClassifier,
    pins: &Pins,
    target: &Target,
    direction: Direction,
) -> Result<(), AttachError> {
    let pin = pins.link(&direction.pin(target.ifindex));
    if let Ok(link) = PinnedLink::from_pin(&pin) {
        let id = FdLink::from(link)
            .try_into()
            .map_err(AttachError::from)
            .and_then(|link| program.attach_to_link(link).map_err(AttachError::from));
        if let Ok(id) = id {
            // The pin holds the link; ours must only not be closed as "detached".
            drop(program.take_link(id)?);
            return Ok(());
        }
        // The device of this link is gone and its index was given to another.
        fs::remove_file(&pin)?;
    }
    let order = TcAttachOptions::TcxOrder(LinkOrder::first());
    let id = program.attach_with_options(&target.name, direction.attach_type, order)?;
    let link: FdLink = program.take_link(id)?.try_into()?;
    link.pin(&pin)?;
    Ok(())
}

fn attach_clsact(
    program: &mut SchedClassifier,
    target: &Target,
    direction: Direction,
) -> Result<(), AttachError> {
    match tc::qdisc_add_clsact(&target.name) {
        Ok(()) => {}
        Err(error) if is_errno(&error, nix::errno::Errno::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let old = SchedClassifierLink::attached(&target.name, direction.attach_type, PRIORITY, HANDLE, None)?;
    let id = match program.attach_to_link(old) {
        Ok(id) => id,
        Err(ProgramError::TcError(_)) => {
            let options = NlOptions { priority: PRIORITY, handle: HANDLE, ..NlOptions::default() };
            program.attach_with_options(
                &target.name,
                direction.attach_type,
                TcAttachOptions::Netlink(options),
            )?
        }
        Err(error) => return Err(error.into()),
    };
    // Dropping the link would remove the filter, which is to outlive us.
    std::mem::forget(program.take_link(id)?);
    Ok(())
}

fn is_errno(error: &(dyn std::error::Error + 'static), errno: nix::errno::Errno) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io.raw_os_error() == Some(errno as i32);
        }
        cause = error.source();
    }
    false
}

/// Removes our programs from the device called `name`; returns what was there.
pub(super) fn detach(pins: &Pins, ifindex: u32, name: &str) -> Vec<String> {
    let mut removed = Vec::new();
    for direction in DIRECTIONS {
        if fs::remove_file(pins.link(&direction.pin(ifindex))).is_ok() {
            removed.push(format!("{} program of {name} (TCX)", direction.name));
        }
        for ethernet in [true, false] {
            let program = direction.program(ethernet);
            if tc::qdisc_detach_program(name, direction.attach_type, program).is_ok() {
                removed.push(format!("{} program of {name} (clsact)", direction.name));
            }
        }
    }
    removed
}

/// The interface a pinned link belongs to, if it is one of ours.
pub(super) fn ifindex_of_pin(pin: &str) -> Option<u32> {
    pin.strip_prefix("tcx-")?.rsplit_once('-')?.1.parse().ok()
}
