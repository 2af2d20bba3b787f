//! The loaded programs: how they come into the kernel, and what can be asked of them.

mod devices;
mod repair;
mod takeover;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use aya::{
    Ebpf,
    programs::{Program, ProgramError, SchedClassifier},
};

use super::{
    KernelError, KernelMaps,
    attach::{Target, TcMode},
    bpf::{self, Run},
    fields,
    generations::Generations,
    handover::{self, Handover},
    iterators, loopback,
    object::{self, Capacities},
    pinned::PinnedMaps,
    pins::Pins,
    pod_cgroups, sockets, tails,
    xdp::{self, XdpPolicy},
};

pub use devices::EdgeChange;
pub use repair::{Lost, Part, Standing};

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
    /// Socket hooks that are attached.
    hooks: BTreeSet<&'static str>,
    /// Edges that refused the programs when they were last followed.
    refused: BTreeSet<u32>,
    xdp: xdp::Programs,
    /// Why the kernel does not have the program for drivers.
    no_xdp: Option<String>,
    /// Generations before this one that are still in service.
    handover: Option<Handover>,
    /// No edge has been followed, and there was no generation before: no packet and no socket was ever
    /// translated.
    unused: bool,
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
            return Ok(Self { unused: true, ..datapath });
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

    fn load_new(generations: &Generations, options: Options) -> Result<Self, KernelError> {
        let before = generations.current()?;
        let pins = generations.begin()?;
        let load = || {
            fields::note(&pins)?;
            if let Some(before) = before {
                handover::share_storage(&before, &pins)?;
            }
            Self::load(pins.clone(), options)
        };
        load().inspect_err(|_| discard(&pins))
    }

    fn load(pins: Pins, options: Options) -> Result<Self, KernelError> {
        pins.create()?;
        let mut ebpf = object::load(&pins, &options.capacities, options.log_level, options.xdp)?;
        tails::fill(&mut ebpf, &pins, true)?;
        iterators::pin(&mut ebpf, &pins, &iterators::SWEEPS)?;
        if let Err(error) = iterators::pin(&mut ebpf, &pins, &iterators::LIST_SOCKETS) {
            tracing::warn!(%error, "UDP sockets that are connected to a backend that goes will not be found");
        }
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
            hooks: BTreeSet::new(),
            refused: BTreeSet::new(),
            xdp: xdp::Programs::default(),
            no_xdp,
            handover: None,
            unused: false,
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

    /// There may be programs in drivers.
    pub fn has_driver(&self) -> bool {
        self.options.xdp != XdpPolicy::Off && self.no_xdp.is_none()
    }

    /// Rows the maps have room for.
    pub fn capacities(&self) -> Capacities {
        self.options.capacities
    }

    /// Where its maps are.
    pub(super) fn pins(&self) -> &Pins {
        &self.pins
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
            self.hooks.retain(|hook| !object::SOCKET_HOOKS.contains(hook));
            return Ok(());
        }
        self.attach_hooks(&object::SOCKET_HOOKS)
    }

    /// Keeps other processes of the host from binding NodePorts, from here on.
    ///
    /// # Errors
    /// When there is no cgroup v2, or the kernel refuses.
    pub fn protect_node_ports(&mut self) -> Result<(), KernelError> {
        self.attach_hooks(&object::BIND_HOOKS)
    }

    fn attach_hooks(&mut self, hooks: &[&'static str]) -> Result<(), KernelError> {
        let cgroup = self.cgroup()?;
        sockets::attach(&mut self.ebpf, &self.pins, &cgroup, hooks)?;
        self.hooks.extend(hooks);
        Ok(())
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
            object::load_layer3(&mut self.ebpf)?;
            tails::fill(&mut self.ebpf, &self.pins, false)?;
            self.has_layer3 = true;
        }
        Ok(())
    }
}

/// Removes a generation that is not in service.
fn discard(pins: &Pins) {
    if let Err(error) = pins.remove() {
        tracing::warn!(%error, "the next agent removes it");
    }
}
