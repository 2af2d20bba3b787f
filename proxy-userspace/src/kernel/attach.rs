//! Programs at devices: TCX links that are pinned, clsact filters where the kernel or the
//! operator wants them. Either survives the agent, and a new agent replaces the program
//! in place.

mod clsact;

use std::{collections::BTreeMap, fs, io, os::fd::AsFd as _};

use aya::{
    Ebpf,
    programs::{
        Link, LinkOrder, SchedClassifier, TcAttachType,
        links::{FdLink, PinnedLink},
        tc::{self, SchedClassifierLink, TcAttachOptions},
    },
    util::KernelVersion,
};

use super::{bpf, error::KernelError, object, pins::Pins};

/// The first kernel with TCX.
const TCX_SINCE: KernelVersion = KernelVersion::new(6, 6, 0);
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
    pub(super) name: &'static str,
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
/// agent left there. It comes behind the programs of `outgoing` generations.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    pins: &Pins,
    outgoing: &[Pins],
    by_tcx: bool,
    target: &Target,
    direction: Direction,
) -> Result<(), KernelError> {
    let name = direction.program(target.ethernet);
    let program = object::program::<SchedClassifier>(ebpf, name)?;
    let attached = if by_tcx {
        attach_tcx(program, pins, outgoing, target, direction)
    } else {
        clsact::attach(program, clsact::priority(pins), target, direction)
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
    outgoing: &[Pins],
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
    let last = outgoing.iter().rev().find_map(|pins| tcx_link(pins, target.ifindex, direction));
    let behind = last.as_ref().and_then(|link| LinkOrder::after_link(link).ok());
    let order = |order| TcAttachOptions::TcxOrder(order);
    let attached = behind.and_then(|behind| {
        program.attach_with_options(&target.name, direction.attach_type, order(behind)).ok()
    });
    // There is none, or its device is gone and the index was given to another.
    let id = match attached {
        Some(id) => id,
        None => {
            let first = order(LinkOrder::first());
            program.attach_with_options(&target.name, direction.attach_type, first)?
        }
    };
    // It lives by its pin; dropping it closes the descriptor and no more.
    drop(last);
    let link: FdLink = program.take_link(id)?.try_into()?;
    link.pin(&pin)?;
    Ok(())
}

/// Whether `target` has a program of this generation in this direction. Which, is the business of the agent that
/// attached last: there may be two for a while.
///
/// # Errors
/// When the kernel does not tell.
pub(super) fn is_attached(
    pins: &Pins,
    by_tcx: bool,
    target: &Target,
    direction: Direction,
) -> io::Result<bool> {
    if !by_tcx {
        return clsact::has_filter(clsact::priority(pins), target, direction);
    }
    // A link ends with its pin, or when somebody detaches it.
    match bpf::link_open(&pins.link(&direction.pin(target.ifindex))) {
        Ok(link) => Ok(bpf::link_device(link.as_fd())?.is_some_and(|facts| facts.ifindex == target.ifindex)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The link of a generation at a device.
fn tcx_link(pins: &Pins, ifindex: u32, direction: Direction) -> Option<SchedClassifierLink> {
    let link = PinnedLink::from_pin(pins.link(&direction.pin(ifindex))).ok()?;
    FdLink::from(link).try_into().ok()
}

/// How a generation is attached, as far as its pins tell.
pub(super) fn mode_of(generations: &[Pins]) -> Option<TcMode> {
    if generations.is_empty() {
        return None;
    }
    let links = |pins: &Pins| pins.links().unwrap_or_default();
    let mut links = generations.iter().flat_map(links);
    let by_tcx = links.any(|pin| ifindex_of_pin(&pin).is_some());
    Some(if by_tcx { TcMode::Tcx } else { TcMode::Clsact })
}

/// Removes the filters of a generation; `attached` are the devices that carry another one.
pub(super) fn retire_filters(pins: &Pins, attached: &BTreeMap<u32, Target>) {
    for target in attached.values() {
        for direction in DIRECTIONS {
            let link = SchedClassifierLink::attached(
                &target.name,
                direction.attach_type,
                clsact::priority(pins),
                clsact::HANDLE,
                None,
            );
            // Where it is not attached by a filter there is none to detach.
            let _ = link.map(Link::detach);
        }
    }
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
