//! The XDP programs at devices. Every round looks at what the kernel has: a link of ours
//! that is in order gets the program of this agent, in place; everything else is made anew
//! or explained.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use super::{
    XdpInForce, XdpMode, XdpPolicy, XdpStatus,
    ask::Asker,
    links::{detach_others, end, pin},
    netdev::NDO_XMIT,
};
use crate::kernel::{
    bpf, ethtool,
    host::{Served, XdpPlan, XdpTarget},
    pins::Pins,
};

/// A device that refused is asked again after this long, or when something about it has
/// changed: refusing may cost its driver more than a look at its settings.
const ASK_AGAIN: Duration = Duration::from_secs(20);

/// The reason of a mode that an earlier agent chose.
const EARLIER_AGENT: &str = "the driver has refused an earlier agent";

/// The loaded program.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Program<'a> {
    pub(in crate::kernel) fd: BorrowedFd<'a>,
    pub(in crate::kernel) id: u32,
}

/// What is attached where.
#[derive(Debug, Default)]
pub(in crate::kernel) struct Programs {
    placed: BTreeMap<u32, Placed>,
}

/// What became of one device.
#[derive(Clone, Debug)]
struct Placed {
    target: XdpTarget,
    mode: XdpMode,
    reason: String,
    /// It sends what XDP on another device redirects to it.
    sends: bool,
    at: Instant,
}

impl Programs {
    /// Makes `program` run on the devices of `plan`, and on no other. Without a program the
    /// reason stands for each device. Returns what became of every device.
    pub(in crate::kernel) fn follow(
        &mut self,
        pins: &Pins,
        policy: XdpPolicy,
        program: Result<Program<'_>, &str>,
        plan: &XdpPlan,
    ) -> Vec<XdpStatus> {
        let none = Vec::new();
        let targets = if policy == XdpPolicy::Off { &none } else { &plan.targets };
        detach_others(pins, targets);
        self.placed.retain(|ifindex, _| targets.iter().any(|target| target.ifindex == *ifindex));
        for target in targets {
            let recent = self.placed.get(&target.ifindex).is_some_and(|placed| {
                placed.mode == XdpMode::None && placed.target == *target && placed.at.elapsed() < ASK_AGAIN
            });
            if !recent {
                let earlier = self.placed.get(&target.ifindex).map(|placed| placed.reason.as_str());
                let placed = place(pins, policy, program, target, earlier.unwrap_or(EARLIER_AGENT));
                self.placed.insert(target.ifindex, placed);
            }
        }
        self.statuses(policy, plan)
    }

    /// Devices that send what XDP on another device redirects to them. One that the stack
    /// serves sends for all others that the stack serves, and for no driver.
    pub(in crate::kernel) fn transmitters(&self) -> BTreeSet<u32> {
        let native = self.placed.values().any(|placed| placed.mode == XdpMode::Native);
        let mode = if native { XdpMode::Native } else { XdpMode::Generic };
        let able = self.placed.iter().filter(|(_, placed)| placed.mode == mode && placed.sends);
        able.map(|(ifindex, _)| *ifindex).collect()
    }

    fn statuses(&self, policy: XdpPolicy, plan: &XdpPlan) -> Vec<XdpStatus> {
        let name = |ifindex: u32| {
            let target = plan.targets.iter().find(|target| target.ifindex == ifindex);
            target.map_or_else(String::new, |target| target.name.clone())
        };
        let of = |ifindex: u32| match self.placed.get(&ifindex) {
            Some(placed) => (placed.mode, placed.reason.clone()),
            None => (XdpMode::None, String::new()),
        };
        let status = |ifindex, interface: &String, (mode, reason)| {
            let interface = interface.clone();
            XdpStatus { ifindex, interface, configured: policy, mode, reason }
        };
        let own = plan.targets.iter().map(|t| status(t.ifindex, &t.name, of(t.ifindex)));
        let others = plan.others.iter().map(|other| {
            let result = match &other.served {
                _ if policy == XdpPolicy::Off => (XdpMode::None, String::new()),
                Served::Not(reason) => (XdpMode::None, reason.clone()),
                Served::By(carrier) => match of(*carrier) {
                    (XdpMode::None, reason) => (XdpMode::None, format!("{}: {reason}", name(*carrier))),
                    (mode, _) => (mode, format!("by {}", name(*carrier))),
                },
            };
            status(other.ifindex, &other.name, result)
        });
        own.chain(others).collect()
    }
}

fn place(
    pins: &Pins,
    policy: XdpPolicy,
    program: Result<Program<'_>, &str>,
    target: &XdpTarget,
    earlier: &str,
) -> Placed {
    let result = program.map_err(str::to_owned).and_then(|program| {
        let mut kernel = Asker::open().map_err(|error| format!("cannot ask the kernel: {error}"))?;
        Attempt {
            pin: &pins.link(&pin(target.ifindex)),
            policy,
            program,
            target,
            earlier,
            kernel: &mut kernel,
        }
        .run()
    });
    let (mode, reason, sends) = result.unwrap_or_else(|reason| (XdpMode::None, reason, false));
    Placed { target: target.clone(), mode, reason, sends, at: Instant::now() }
}

/// The program and one device.
struct Attempt<'a> {
    pin: &'a Path,
    policy: XdpPolicy,
    program: Program<'a>,
    target: &'a XdpTarget,
    /// Why the mode was not native when it was last looked at.
    earlier: &'a str,
    kernel: &'a mut Asker,
}

impl Attempt<'_> {
    /// The mode, why it is not native, and whether the device sends for others; or why the
    /// program is not attached.
    fn run(mut self) -> Result<(XdpMode, String, bool), String> {
        if let Some(name) = self.stripper() {
            end(self.pin);
            return Err(format!("VLAN tags are taken off first; `ethtool -K {name} rxvlan off` keeps them"));
        }
        let barred = self.bar();
        let (mode, reason) = match self.adopt(barred.is_some()) {
            // Why the driver refuses cannot be asked while the stack runs the program.
            Some(XdpMode::Generic) => (XdpMode::Generic, barred.unwrap_or_else(|| self.earlier.to_owned())),
            Some(mode) => (mode, String::new()),
            None => self.attach(barred.as_deref())?,
        };
        let sends = mode == XdpMode::Generic || self.sends();
        Ok((mode, reason, sends))
    }

    /// The driver that hides from the program to which VLAN a frame belongs. What comes by a
    /// cable is as its other end has sent it.
    fn stripper(&self) -> Option<&str> {
        let mut tagged = self.target.tagged.iter().filter(|_| !self.target.cable);
        tagged.find(|name| ethtool::strips_vlan_tags(name).unwrap_or(false)).map(String::as_str)
    }

    /// Why the driver is not even asked. What comes by a virtual cable was never on a wire:
    /// its checksum may still have to be computed, which a program cannot see, and what is
    /// redirected to it arrives only where the other end has a program too, or GRO.
    fn bar(&mut self) -> Option<String> {
        if !self.target.cable {
            return None;
        }
        if !self.policy.takes_cables() {
            let hint = "a virtual cable, whose frames may lack checksums; xdp: native takes it as a wire";
            return Some(hint.into());
        }
        let able = self.kernel.features(self.target.ifindex).is_none_or(|features| features & NDO_XMIT != 0);
        let reason = "the other end of the cable takes no frames from XDP: it has neither a program nor GRO";
        (!able).then(|| reason.into())
    }

    /// The mode of the link an earlier round or agent has left here, if it still will do. It
    /// then runs the program of this agent, without a packet in between that sees none.
    fn adopt(&mut self, barred: bool) -> Option<XdpMode> {
        let link = bpf::link_open(self.pin).ok()?;
        let facts = bpf::link_device(link.as_fd()).ok().flatten();
        let mode = facts.filter(|facts| facts.ifindex == self.target.ifindex).and_then(|facts| {
            let mode = self.in_force().filter(|there| there.program == facts.program)?.mode;
            let wanted = match mode {
                XdpMode::Native => !barred,
                XdpMode::Generic => self.policy == XdpPolicy::Generic,
                XdpMode::None => false,
            };
            let current = facts.program == self.program.id;
            (wanted && (current || bpf::link_update(link.as_fd(), self.program.fd).is_ok())).then_some(mode)
        });
        if mode.is_none() {
            // Its device is gone, or the mode is no longer wanted.
            end(self.pin);
        }
        mode
    }

    /// The mode, and why it is not native; or why there is none.
    fn attach(&mut self, barred: Option<&str>) -> Result<(XdpMode, String), String> {
        if let Some(there) = self.in_force() {
            return Err(format!("it has an XDP program of somebody else: {}", describe(there.program)));
        }
        let refusal = match barred {
            Some(reason) => reason.to_owned(),
            None => match self.make(XdpMode::Native) {
                Ok(()) => return Ok((XdpMode::Native, String::new())),
                Err(error) => self.explain(&error),
            },
        };
        if self.policy != XdpPolicy::Generic {
            return Err(refusal);
        }
        match self.make(XdpMode::Generic) {
            Ok(()) => Ok((XdpMode::Generic, refusal)),
            Err(error) => Err(format!("{refusal}; and the stack: {error}")),
        }
    }

    fn make(&self, mode: XdpMode) -> io::Result<()> {
        let link: OwnedFd = bpf::xdp_link(self.program.fd, self.target.ifindex, mode.flags())?;
        bpf::link_pin(link.as_fd(), self.pin)
    }

    fn in_force(&mut self) -> Option<XdpInForce> {
        self.kernel.in_force(self.target.ifindex).ok().flatten()
    }

    /// A kernel before 6.3 does not tell; drivers of real devices send, as a rule.
    fn sends(&mut self) -> bool {
        let features = self.kernel.features(self.target.ifindex);
        features.map_or(!self.target.cable, |features| features & NDO_XMIT != 0)
    }

    /// The kernel's own words where it has any, else what its error number means here.
    fn explain(&mut self, error: &io::Error) -> String {
        let words = self.kernel.explain(self.program.fd, self.target.ifindex, XdpMode::Native.flags());
        if let Some(words) = words {
            return format!("the kernel says: {words}");
        }
        let meaning = match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => "the driver has no native XDP",
            Some(libc::EBUSY) => "another program is attached",
            Some(libc::EEXIST) => "a program is attached in another mode, or at a device above",
            Some(libc::EINVAL) => "the driver does not take it with these settings, such as MTU or LRO",
            Some(libc::ERANGE) => "the MTU or a ring of the device is too large for it",
            Some(libc::ENOMEM | libc::ENOSPC) => "the device has too few queues, or there is no memory",
            _ => return error.to_string(),
        };
        format!("{meaning} ({error})")
    }
}

/// What people see of a program of somebody else.
fn describe(program: u32) -> String {
    let mut all = aya::programs::loaded_programs().flatten();
    let found = all.find(|info| info.id() == program);
    let name = found.as_ref().and_then(|info| info.name_as_str()).unwrap_or_default();
    format!("{name} (id {program})").trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(mode: XdpMode, sends: bool) -> Placed {
        let target =
            XdpTarget { ifindex: 0, name: String::new(), cable: false, mtu: 1500, tagged: Vec::new() };
        Placed { target, mode, reason: String::new(), sends, at: Instant::now() }
    }

    /// Devices 1, 2, … with what became of them, and those that may be redirected to.
    fn check<const N: usize>(devices: [(XdpMode, bool); N], expected: &[u32]) {
        let placed = (1..).zip(devices.map(|(mode, sends)| placed(mode, sends))).collect();
        let transmitters = Programs { placed }.transmitters();
        assert_eq!(transmitters.into_iter().collect::<Vec<_>>(), expected, "{devices:?}");
    }

    #[test]
    fn drivers_redirect_to_drivers_and_the_stack_to_the_stack() {
        use XdpMode::{Generic, Native, None};
        check([(None, false), (Native, true), (Native, false)], &[2]);
        check([(Generic, true), (Generic, true), (None, false)], &[1, 2]);
        check([(Generic, true), (Native, true)], &[2]);
        check([(Generic, true), (Native, false)], &[]);
    }
}
