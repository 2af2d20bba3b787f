//! The loaded programs: attached to edges and to a cgroup, and the traces they leave.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use aya::{
    Ebpf,
    programs::{Program, ProgramError, SchedClassifier, Xdp},
};

use super::{
    KernelError, KernelMaps,
    attach::{self, Direction, Target, TcMode},
    bpf::{self, Run},
    fields,
    generations::Generations,
    handover::{self, HandedOver, Handover},
    host::{Edge, EdgeKind, LOOPBACK, XdpPlan},
    loopback,
    object::{self, Capacities},
    pinned::PinnedMaps,
    pins::Pins,
    pod_cgroups, sockets, tails,
    xdp::{self, XdpPolicy, XdpStatus},
};

/// How the datapath is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of all pins, on a BPF file system.
    pub bpffs: PathBuf,
    /// Cgroup whose processes socket LB serves; none is the root of the hierarchy.
    pub cgroup: Option<PathBuf>,
    /// Rows the maps have room for.
    pub capacities: Capacities,
    /// How programs are attached to devices.
    pub tc_mode: TcMode,
    /// Whether drivers run a program of their own.
    pub xdp: XdpPolicy,
    /// Log level of the programs: 0 is off and free.
    pub log_level: u8,
}

/// The loaded programs.
pub struct Datapath {
    ebpf: Ebpf,
    pins: Pins,
    options: Options,
    /// The programs for devices without an Ethernet header are loaded.
    has_layer3: bool,
    attached: BTreeMap<u32, Target>,
    /// Edges that refused the programs when they were last followed.
    refused: BTreeSet<u32>,
    xdp: xdp::Programs,
    /// Why the kernel does not have the program for drivers.
    no_xdp: Option<String>,
    /// Generations before this one that are still in service.
    handover: Option<Handover>,
}

/// What [`Datapath::follow`] did about one device.
#[derive(Debug)]
pub enum EdgeChange {
    /// The programs are attached to it from here on.
    Attached(Edge),
    /// It is gone, or no edge any more.
    Detached(Target),
    /// The programs are not attached; the next call tries again.
    Failed(Edge, KernelError),
}

impl Datapath {
    /// Loads the programs. Maps that an earlier agent has pinned are adopted if they have the shape
    /// this one needs; its programs then go on in the new ones where they go on in others. Else
    /// there are new maps with copies of the rows, and the programs of both are in service until
    /// the earlier ones have handed over ([`Datapath::is_taking_over`]). Attaches nothing.
    ///
    /// # Errors
    /// When the pins cannot be made or used, or the kernel refuses a program.
    pub fn open(mut options: Options) -> Result<Self, KernelError> {
        let generations = Generations::create(&options.bpffs)?;
        generations.discard_unfinished()?;
        let Some(current) = generations.current()? else {
            let datapath = Self::load_new(&generations, options)?;
            generations.switch(&datapath.pins)?;
            return Ok(datapath);
        };
        options.capacities = options.capacities.after(&current)?;
        if !object::fits(&current, &options.capacities)? {
            let mut datapath = Self::load_new(&generations, options)?;
            datapath.inherit()?;
            return Ok(datapath);
        }
        let mut datapath = Self::load(current, options)?;
        datapath.take_over_from(&generations, Vec::new())?;
        Ok(datapath)
    }

    /// Loads the programs once more, with new maps of these capacities, beside those in service.
    /// [`Datapath::inherit`] comes next.
    ///
    /// # Errors
    /// When the kernel refuses a map or a program.
    pub fn load_next(&self, capacities: Capacities) -> impl FnOnce() -> Result<Self, KernelError> + use<> {
        let options = Options { capacities, ..self.options.clone() };
        move || Self::load_new(&Generations::below(&options.bpffs), options)
    }

    /// Copies the rows of the generation in service.
    ///
    /// # Errors
    /// When a row cannot be read or written; then this generation is gone again.
    pub fn inherit(&mut self) -> Result<(), KernelError> {
        let generations = Generations::below(&self.options.bpffs);
        let inherited = generations.current().and_then(|current| {
            let snapshot = current.map(|current| handover::copy_tables(&current, &self.pins)).transpose()?;
            self.take_over_from(&generations, snapshot.unwrap_or_default())
        });
        inherited.inspect_err(|_| discard(&self.pins))
    }

    fn take_over_from(
        &mut self,
        generations: &Generations,
        snapshot: handover::Snapshot,
    ) -> Result<(), KernelError> {
        let mut outgoing = generations.all()?;
        outgoing.retain(|pins| *pins != self.pins);
        if !outgoing.is_empty() {
            let names = |pins: &Pins| pins.generation().directory();
            let (from, to): (Vec<_>, _) = (outgoing.iter().map(names).collect(), names(&self.pins));
            tracing::info!(?from, to, "taking over from an earlier generation of maps and programs");
            self.handover = Some(Handover::new(generations.clone(), outgoing, snapshot));
        }
        Ok(())
    }

    fn load_new(generations: &Generations, options: Options) -> Result<Self, KernelError> {
        let pins = generations.begin()?;
        fields::note(&pins).inspect_err(|_| discard(&pins))?;
        Self::load(pins.clone(), options).inspect_err(|_| discard(&pins))
    }

    fn load(pins: Pins, options: Options) -> Result<Self, KernelError> {
        pins.create()?;
        let mut ebpf = object::load(&pins, &options.capacities, options.log_level, options.xdp)?;
        tails::fill(&mut ebpf, &pins, true)?;
        let no_xdp = match options.xdp {
            XdpPolicy::Off => None,
            _ => object::load_driver(&mut ebpf).err().map(|error| {
                tracing::warn!(%error, "XDP is not used");
                "the kernel refuses the program; the agent's log has its words".to_owned()
            }),
        };
        Ok(Self {
            ebpf,
            pins,
            options,
            has_layer3: false,
            attached: BTreeMap::new(),
            refused: BTreeSet::new(),
            xdp: xdp::Programs::default(),
            no_xdp,
            handover: None,
        })
    }

    /// What takes privileges that an agent may lack later: the directory of pins, and the
    /// settings of loopback where that is to be an edge.
    ///
    /// # Errors
    /// When the pins cannot be made.
    pub fn prepare_host(bpffs: &Path, loopback: bool) -> Result<(), KernelError> {
        Generations::create(bpffs)?;
        if loopback {
            loopback::accept_own_sources(true);
        }
        Ok(())
    }

    /// Programs of an earlier generation are in service, and this one must not be attached before
    /// [`Datapath::begin_handover`].
    pub fn is_taking_over(&self) -> bool {
        self.handover.is_some()
    }

    /// Rows the maps have room for.
    pub fn capacities(&self) -> Capacities {
        self.options.capacities
    }

    /// Prepares both generations for being attached together. `maps` are this one's, and hold what
    /// is wanted. Next come [`Datapath::follow`] and the socket hooks.
    ///
    /// # Errors
    /// When a map cannot be read or written; then everything is as before.
    pub fn begin_handover(&mut self, maps: &mut KernelMaps) -> Result<(), KernelError> {
        let Some(mut handover) = self.handover.take() else { return Ok(()) };
        let begun = handover.begin(&self.pins, maps);
        self.handover = Some(handover);
        begun.inspect_err(|_| self.abort_handover())
    }

    /// Takes the connections over and removes the earlier generations. This one's programs are
    /// attached. XDP programs are still the earlier ones: [`Datapath::follow_xdp`] comes next.
    ///
    /// # Errors
    /// When an edge of the earlier programs has refused these: then everything is as before. Or
    /// when a map cannot be read or written: then the next agent goes on from there.
    pub fn finish_handover(&mut self, maps: &mut KernelMaps) -> Result<HandedOver, KernelError> {
        let Some(handover) = &self.handover else { return Ok(HandedOver::default()) };
        let served = |ifindex: &u32| {
            let links = |pins: &Pins| pins.links().unwrap_or_default();
            let mut pins = handover.outgoing().iter().flat_map(links);
            !self.is_tcx() || pins.any(|pin| attach::ifindex_of_pin(&pin) == Some(*ifindex))
        };
        if let Some(ifindex) = self.refused.iter().find(|ifindex| served(ifindex)) {
            let what = format!("interface {ifindex}");
            let source = "it has refused the programs; the log says why".into();
            self.abort_handover();
            return Err(KernelError::Handover { what, source });
        }
        let handed_over = handover.take_over(&self.pins, maps)?;
        for from in handover.outgoing() {
            xdp::adopt_pins(from, &self.pins)
                .map_err(|source| KernelError::System { what: "pin the XDP links anew".into(), source })?;
            attach::retire_filters(from, &self.attached);
        }
        handover.retire()?;
        self.handover = None;
        Ok(handed_over)
    }

    /// Ends this generation, if it has not taken over yet; the earlier ones go on.
    pub fn abort_handover(&mut self) {
        let Some(handover) = self.handover.take() else { return };
        attach::retire_filters(&self.pins, &self.attached);
        if let Err(error) = handover.undo() {
            tracing::warn!(%error, "the earlier programs go on with half of their source ports");
        }
        self.attached.clear();
        discard(&self.pins);
    }

    /// The maps, open for writing.
    ///
    /// # Errors
    /// When one cannot be mapped into memory.
    pub fn maps(&self) -> Result<KernelMaps, KernelError> {
        KernelMaps::open(&self.pins)
    }

    /// The maps, open for reading.
    ///
    /// # Errors
    /// When there are none.
    pub fn pinned(&self) -> Result<PinnedMaps, KernelError> {
        PinnedMaps::open(self.pins.clone())
    }

    /// The reader of the programs' log lines; none if they do not log.
    pub fn logger(&mut self) -> Option<aya_log::EbpfLogger<&'static dyn log::Log>> {
        if self.options.log_level == 0 { None } else { object::logger(&mut self.ebpf) }
    }

    /// `bpf_get_netns_cookie` of the agent's network namespace, which is the host's.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn netns_cookie(&self) -> Result<u64, KernelError> {
        super::netns_cookie()
    }

    /// Runs a packet through the program at tc ingress without sending it; connections are
    /// entered as if it had come in by `ifindex`.
    ///
    /// # Errors
    /// When the kernel refuses the packet.
    pub fn run_ingress(&mut self, packet: &[u8], ifindex: u32) -> Result<Run, KernelError> {
        self.run(object::CLASSIFIERS[0], packet, ifindex)
    }

    /// Runs a packet through the program at tc egress without sending it. `ifindex` is
    /// where it came in, 0 for a packet of this host.
    ///
    /// # Errors
    /// When the kernel refuses the packet.
    pub fn run_egress(&mut self, packet: &[u8], ifindex: u32) -> Result<Run, KernelError> {
        self.run(object::CLASSIFIERS[1], packet, ifindex)
    }

    /// The same for the tc program called `name`.
    ///
    /// # Errors
    /// When there is none, or the kernel refuses the packet.
    pub fn run(&mut self, name: &'static str, packet: &[u8], ifindex: u32) -> Result<Run, KernelError> {
        let program = object::program::<SchedClassifier>(&mut self.ebpf, name)?;
        let fd = program.fd().map_err(|source| KernelError::Program { name, source })?;
        bpf::test_run(fd.as_fd(), packet, ifindex, 1).map_err(|source| KernelError::System {
            what: format!("run a packet of {} bytes through {name}", packet.len()),
            source,
        })
    }

    /// The program called `name`, for whoever runs packets through it in another way.
    ///
    /// # Errors
    /// When there is none.
    pub fn program(&self, name: &'static str) -> Result<BorrowedFd<'_>, KernelError> {
        let error = |source| KernelError::Program { name, source };
        let program = self.ebpf.program(name).ok_or(error(ProgramError::NotLoaded))?;
        Ok(program.fd().map_err(error)?.as_fd())
    }

    /// Every program with the number of instructions the verifier walked (kernel 5.16).
    pub fn verified_instructions(&self) -> BTreeMap<String, u32> {
        let count = |program: &Program| program.info().ok()?.verified_instruction_count();
        let programs = self.ebpf.programs();
        programs.filter_map(|(name, program)| Some((name.to_owned(), count(program)?))).collect()
    }

    /// Attaches the socket hooks, or removes those of an earlier agent.
    ///
    /// # Errors
    /// When there is no cgroup v2, or the kernel refuses.
    pub fn set_socket_lb(&mut self, on: bool) -> Result<(), KernelError> {
        if !on {
            sockets::detach(&self.pins, &object::SOCKET_HOOKS);
            return Ok(());
        }
        let cgroup = self.cgroup()?;
        sockets::attach(&mut self.ebpf, &self.pins, &cgroup, &object::SOCKET_HOOKS)
    }

    /// Keeps other processes of the host from binding NodePorts, from here on.
    ///
    /// # Errors
    /// When there is no cgroup v2, or the kernel refuses.
    pub fn protect_node_ports(&mut self) -> Result<(), KernelError> {
        let cgroup = self.cgroup()?;
        sockets::attach(&mut self.ebpf, &self.pins, &cgroup, &object::BIND_HOOKS)
    }

    /// The ids of the cgroups of those of `pods`, given by UID, that have one already.
    ///
    /// # Errors
    /// When there is no cgroup v2.
    pub fn pod_cgroups(&self, pods: &BTreeSet<Arc<str>>) -> Result<BTreeMap<Arc<str>, u64>, KernelError> {
        let root = self.cgroup()?;
        pod_cgroups::find(&root, pods).map_err(|source| KernelError::Cgroup { path: root, source })
    }

    fn cgroup(&self) -> Result<PathBuf, KernelError> {
        self.options.cgroup.clone().map_or_else(sockets::cgroup_root, Ok)
    }

    /// Loads the programs for devices without an Ethernet header, unless they are loaded. Attaching
    /// to such a device does it.
    ///
    /// # Errors
    /// When the kernel refuses one.
    pub fn load_layer3(&mut self) -> Result<(), KernelError> {
        if !self.has_layer3 {
            object::load_classifiers(&mut self.ebpf, false)?;
            tails::fill(&mut self.ebpf, &self.pins, false)?;
            self.has_layer3 = true;
        }
        Ok(())
    }

    fn attach(&mut self, target: &Target, direction: Direction) -> Result<(), KernelError> {
        if !target.ethernet {
            self.load_layer3()?;
        }
        let by_tcx = self.is_tcx();
        let outgoing = self.handover.as_ref().map_or(&[][..], Handover::outgoing);
        attach::attach(&mut self.ebpf, &self.pins, outgoing, by_tcx, target, direction)
    }

    /// Programs are attached by TCX. While another generation is attached, in the way of that one:
    /// programs at TCX come before all filters.
    /// The devices that the tc programs are attached to, and how: `tcx` or `clsact`.
    pub fn attachments(&self) -> Vec<(String, &'static str)> {
        let mode = if self.is_tcx() { "tcx" } else { "clsact" };
        self.attached.values().map(|target| (target.name.clone(), mode)).collect()
    }

    fn is_tcx(&self) -> bool {
        let outgoing = self.handover.as_ref().map_or(&[][..], Handover::outgoing);
        attach::mode_of(outgoing).unwrap_or(self.options.tc_mode).is_tcx()
    }

    /// Makes `edges` the devices that carry the programs.
    pub fn follow(&mut self, edges: &[Edge]) -> Vec<EdgeChange> {
        let wanted: BTreeMap<u32, &Edge> = edges.iter().map(|e| (e.target.ifindex, e)).collect();
        let mut changes = self.detach_others(&wanted);
        let mut new: Vec<_> = wanted
            .into_values()
            .filter(|edge| self.attached.get(&edge.target.ifindex) != Some(&edge.target))
            .collect();
        if new.iter().any(|edge| edge.kind == EdgeKind::Loopback) {
            loopback::accept_own_sources(true);
        }
        // All devices one way, then all the other: a connection that enters by the first of them may leave
        // by the last.
        self.refused.clear();
        for direction in attach::DIRECTIONS {
            new.retain(|edge| match self.attach(&edge.target, direction) {
                Ok(()) => true,
                Err(error) => {
                    self.refused.insert(edge.target.ifindex);
                    changes.push(EdgeChange::Failed((*edge).clone(), error));
                    false
                }
            });
        }
        for edge in new {
            self.attached.insert(edge.target.ifindex, edge.target.clone());
            changes.push(EdgeChange::Attached(edge.clone()));
        }
        changes
    }

    /// Makes the devices of `plan` those whose drivers run the XDP program. What became of
    /// every device.
    pub fn follow_xdp(&mut self, plan: &XdpPlan) -> Vec<XdpStatus> {
        let program = match &self.no_xdp {
            Some(reason) => Err(reason.as_str()),
            None => Ok(()),
        };
        let program = program.and_then(|()| {
            let program =
                object::program::<Xdp>(&mut self.ebpf, object::DRIVER).map_err(|_| "there is no program")?;
            let (fd, info) = (program.fd(), program.info());
            fd.ok().zip(info.ok()).ok_or("the program is not loaded")
        });
        let program = program.as_ref().map_err(|reason| *reason);
        let program = program.map(|(fd, info)| xdp::Program { fd: fd.as_fd(), id: info.id() });
        self.xdp.follow(&self.pins, self.options.xdp, program, plan)
    }

    /// Devices that send what XDP on another device redirects to them.
    pub fn xdp_transmitters(&self) -> BTreeSet<u32> {
        self.xdp.transmitters()
    }

    /// Those attached by this agent, and those an earlier one left pinned.
    fn detach_others(&mut self, wanted: &BTreeMap<u32, &Edge>) -> Vec<EdgeChange> {
        let mut changes = Vec::new();
        let gone: Vec<u32> = self.attached.keys().filter(|i| !wanted.contains_key(i)).copied().collect();
        for ifindex in gone {
            if let Some(target) = self.attached.remove(&ifindex) {
                attach::detach(&self.pins, ifindex, &target.name);
                changes.push(EdgeChange::Detached(target));
            }
        }
        for pin in self.pins.links().unwrap_or_default() {
            if attach::ifindex_of_pin(&pin).is_some_and(|i| !wanted.contains_key(&i)) {
                // The pin is all that is left to remove; without it the kernel detaches the program.
                let _ = fs::remove_file(self.pins.link(&pin));
            }
        }
        changes
    }
}

/// Removes a generation that is not in service.
fn discard(pins: &Pins) {
    if let Err(error) = pins.remove() {
        tracing::warn!(%error, "the next agent removes it");
    }
}

/// Removes every trace: programs, links, maps, pins. Returns what was there. Connections
/// that were being translated end.
///
/// # Errors
/// When a pin cannot be removed.
pub fn cleanup(bpffs: &Path, links: &BTreeMap<u32, String>) -> Result<Vec<String>, KernelError> {
    let generations = Generations::below(bpffs);
    let mut removed = Vec::new();
    // Filters of a clsact qdisc have no pin.
    let all = generations.all()?.into_iter().chain([Pins::new(bpffs)]);
    for pins in all {
        for (ifindex, name) in links {
            removed.extend(xdp::detach(&pins, *ifindex, name));
            removed.extend(attach::detach(&pins, *ifindex, name));
            if *ifindex == LOOPBACK && removed.iter().any(|r| r.contains(&format!("program of {name} "))) {
                loopback::accept_own_sources(false);
            }
        }
        removed.extend(sockets::detach(&pins, &object::SOCKET_HOOKS));
        removed.extend(sockets::detach(&pins, &object::BIND_HOOKS));
    }
    if generations.remove()? {
        removed.push(format!("pinned maps below {}", bpffs.display()));
    }
    Ok(removed)
}
