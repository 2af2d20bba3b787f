//! What others have taken away or changed since it was attached, and putting it right.

use nix::net::if_::if_nametoindex;

use super::Datapath;
use crate::kernel::{
    KernelError,
    attach::{self, Target},
    generations::Generations,
    host::LOOPBACK,
    iterators::{LIST_SOCKETS, SWEEPS},
    loopback, object, sockets,
};

/// A part of the datapath that somebody else can take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A program at a device.
    Program,
    /// A socket hook.
    SocketHook,
    /// A setting of the loopback device.
    Loopback,
    /// A pin that holds no program at its place.
    Pin,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Program, Self::SocketHook, Self::Loopback, Self::Pin];

    /// The word in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::SocketHook => "socket_hook",
            Self::Loopback => "loopback",
            Self::Pin => "pin",
        }
    }
}

/// Something that was not as this agent had left it.
#[derive(Debug)]
pub struct Lost {
    /// What kind of thing.
    pub part: Part,
    /// Which one.
    pub name: String,
    /// Whether it is as it should be again.
    pub repaired: Result<(), KernelError>,
}

/// Whether this agent's maps and programs are those in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// They are.
    InService,
    /// Another agent's are.
    Superseded,
    /// Somebody has removed them, as `shunt cleanup --force` does.
    Gone,
}

impl Datapath {
    /// What the pins tell of this generation.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn standing(&self) -> Result<Standing, KernelError> {
        let current = Generations::below(&self.options.bpffs).current()?;
        let other = current.filter(|current| *current != self.pins && current.exists());
        Ok(match (other, self.pins.exists()) {
            (Some(_), _) => Standing::Superseded,
            (None, true) => Standing::InService,
            (None, false) => Standing::Gone,
        })
    }

    /// Compares what is attached and pinned with the kernel and puts right what differs. Devices that have
    /// lost a program are attached to by the next [`Datapath::follow`]. To be called while in service.
    pub fn repair(&mut self) -> Vec<Lost> {
        let mut lost = self.repair_pins();
        lost.extend(self.forget_lost_programs());
        lost.extend(self.repair_hooks());
        lost.extend(self.repair_loopback());
        lost
    }

    fn repair_pins(&mut self) -> Vec<Lost> {
        let mut lost = Vec::new();
        let mut note = |name: &str, repaired| {
            lost.push(Lost { part: Part::Pin, name: name.to_owned(), repaired });
        };
        let generations = Generations::below(&self.options.bpffs);
        if generations.current().is_ok_and(|current| current.is_none()) {
            note("current", generations.switch(&self.pins));
        }
        for (name, pin) in object::names().filter(|(_, pin)| !self.pins.map(pin).exists()) {
            let Some(map) = self.ebpf.map(name) else { continue };
            let repaired = map.pin(self.pins.map(pin)).map_err(|source| KernelError::System {
                what: format!("pin the map {pin}"),
                source: std::io::Error::other(source),
            });
            note(pin, repaired);
        }
        for iterator in SWEEPS.iter().chain(&LIST_SOCKETS) {
            if !self.pins.link(iterator.name()).exists() && iterator.is_loaded(&mut self.ebpf) {
                note(iterator.name(), iterator.pin_loaded(&mut self.ebpf, &self.pins));
            }
        }
        lost
    }

    fn forget_lost_programs(&mut self) -> Vec<Lost> {
        let mut lost = Vec::new();
        let (pins, by_tcx) = (&self.pins, self.is_tcx());
        self.attached.retain(|_, target| {
            let names: Vec<_> = attach::DIRECTIONS
                .into_iter()
                // What cannot be told is left alone.
                .filter(|direction| {
                    matches!(attach::is_attached(pins, by_tcx, target, *direction), Ok(false))
                })
                .map(|direction| format!("{} {}", target.name, direction.name))
                .collect();
            let is_lost = !names.is_empty() && is_there(target);
            if is_lost {
                lost.extend(names.into_iter().map(|name| Lost {
                    part: Part::Program,
                    name,
                    repaired: Ok(()),
                }));
            }
            !is_lost
        });
        lost
    }

    fn repair_hooks(&mut self) -> Vec<Lost> {
        // Without the cgroup there is nothing to attach to.
        let Ok(cgroup) = self.cgroup().and_then(|cgroup| sockets::cgroup_id(&cgroup)) else {
            return Vec::new();
        };
        let lost = |hook: &&'static str| !sockets::is_attached(&self.pins, hook, cgroup);
        let lost: Vec<_> = self.hooks.iter().copied().filter(lost).collect();
        let repair = |hook: &'static str| Lost {
            part: Part::SocketHook,
            name: hook.to_owned(),
            repaired: self.attach_hooks(&[hook]),
        };
        lost.into_iter().map(repair).collect()
    }

    fn repair_loopback(&self) -> Option<Lost> {
        let is_lost =
            self.attached.contains_key(&LOOPBACK) && matches!(loopback::accepts_own_sources(), Ok(false));
        is_lost.then(|| Lost {
            part: Part::Loopback,
            name: "accept_local and route_localnet".into(),
            repaired: loopback::set(true)
                .map_err(|source| KernelError::System { what: "change settings of loopback".into(), source }),
        })
    }
}

/// A device that has just gone takes its programs with it, of which the kernel tells.
fn is_there(target: &Target) -> bool {
    if_nametoindex(target.name.as_str()).is_ok_and(|ifindex| ifindex == target.ifindex)
}
