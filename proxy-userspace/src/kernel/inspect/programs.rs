//! Programs at devices and at the cgroup, ours and those of others.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    os::fd::AsFd,
    path::Path,
};

use aya::programs::{SchedClassifier, TcAttachType, loaded_programs};
use aya_obj::generated::bpf_attach_type as hook;
use rtnetlink::packet_route::tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcMessage, TcOption};

use crate::kernel::{
    Host, KernelError, Link, Netlink, XdpInForce, XdpMode, XdpStatus, bpf, netlink::collect, object,
    pinned::PinnedMaps, pins::Pins,
};

/// What is attached to a device, as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePrograms {
    /// Interface name.
    pub interface: String,
    /// How our program at ingress is attached: `tcx`, `clsact` or not at all.
    pub ingress: Option<&'static str>,
    /// Likewise at egress.
    pub egress: Option<&'static str>,
    /// The mode of our XDP program, here or on the device under a VLAN device.
    pub xdp: XdpMode,
    /// What the agent noted of XDP.
    pub noted: Option<XdpStatus>,
    /// Programs of others, with their hook.
    pub others: Vec<String>,
}

impl DevicePrograms {
    /// It carries one of ours, or the agent noted something of it.
    pub fn is_ours(&self) -> bool {
        self.ingress.is_some() || self.egress.is_some() || self.xdp != XdpMode::None || self.noted.is_some()
    }
}

/// The devices that carry programs, ours or of others, or of which the agent noted something.
///
/// # Errors
/// When devices cannot be read.
pub async fn device_programs(pins: Pins, netlink: &Netlink) -> Result<Vec<DevicePrograms>, KernelError> {
    let host = netlink.host().await?;
    // Without an agent's pins there is nothing noted.
    let noted = PinnedMaps::open(pins).and_then(|maps| maps.xdp_statuses(|_| String::new()));
    let mut noted: BTreeMap<u32, XdpStatus> =
        noted.unwrap_or_default().into_iter().map(|status| (status.ifindex, status)).collect();
    let names: HashMap<u32, String> = program_names();
    let mut found = Vec::new();
    for link in host.links.values() {
        let mut device = DevicePrograms {
            interface: link.name.clone(),
            noted: noted.remove(&link.ifindex),
            ..DevicePrograms::default()
        };
        look_at_tcx(&mut device);
        look_at_filters(&mut device, &netlink.filters(link.ifindex).await?);
        look_at_xdp(&mut device, link, &host, &names);
        if device.is_ours() || !device.others.is_empty() {
            found.push(device);
        }
    }
    Ok(found)
}

fn program_names() -> HashMap<u32, String> {
    let name = |info: &aya::programs::ProgramInfo| info.name_as_str().unwrap_or_default().to_owned();
    loaded_programs().flatten().map(|info| (info.id(), name(&info))).collect()
}

fn is_classifier(name: &str) -> bool {
    object::CLASSIFIERS.contains(&name)
}

fn look_at_tcx(device: &mut DevicePrograms) {
    for (attach_type, direction) in [(TcAttachType::Ingress, "ingress"), (TcAttachType::Egress, "egress")] {
        // A kernel without TCX has none.
        let Ok((_, programs)) = SchedClassifier::query_tcx(&device.interface, attach_type) else { continue };
        for program in programs {
            note(device, program.name_as_str().unwrap_or_default(), direction, "tcx");
        }
    }
}

fn look_at_filters(device: &mut DevicePrograms, filters: &[(&'static str, TcMessage)]) {
    for (direction, filter) in filters {
        for attribute in &filter.attributes {
            let TcAttribute::Options(options) = attribute else { continue };
            for option in options {
                if let TcOption::Bpf(TcFilterBpfOption::ProgName(name)) = option {
                    note(device, name, direction, "clsact");
                }
            }
        }
    }
}

fn note(device: &mut DevicePrograms, program: &str, direction: &'static str, how: &'static str) {
    match direction {
        _ if !is_classifier(program) => device.others.push(format!("{program} ({how} {direction})")),
        "ingress" => device.ingress = Some(how),
        _ => device.egress = Some(how),
    }
}

/// A VLAN device is served by the program on the device under it.
fn look_at_xdp(device: &mut DevicePrograms, link: &Link, host: &Host, names: &HashMap<u32, String>) {
    let name = |there: XdpInForce| names.get(&there.program).map_or("", String::as_str);
    let ours = |link: &Link| link.xdp.filter(|there| name(*there) == object::DRIVER);
    let below = link.vlan.filter(|vlan| vlan.dot1q).and_then(|vlan| host.links.get(&vlan.parent?));
    if let Some(there) = ours(link).or_else(|| ours(below?)) {
        device.xdp = there.mode;
    } else if let Some(there) = link.xdp {
        device.others.push(format!("{} (xdp {})", name(there), there.mode.name()));
    }
}

/// A socket hook of the cgroup and the programs there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketHook {
    /// Name of our program for it.
    pub hook: &'static str,
    /// Ours is there.
    pub ours: bool,
    /// Names of the others.
    pub others: Vec<String>,
}

/// The socket hooks of `cgroup`: those that translate, then those that protect NodePorts.
///
/// # Errors
/// When the cgroup cannot be opened.
pub fn socket_hooks(cgroup: &Path) -> Result<Vec<SocketHook>, KernelError> {
    let dir = File::open(cgroup).map_err(|source| KernelError::Cgroup { path: cgroup.to_owned(), source })?;
    let names = program_names();
    let look = |(name, attach_type): (&'static str, hook)| {
        let programs = bpf::cgroup_programs(dir.as_fd(), attach_type as u32).unwrap_or_default();
        let programs: Vec<String> =
            programs.iter().map(|id| names.get(id).cloned().unwrap_or_default()).collect();
        // The kernel keeps 15 bytes of a name.
        let is_ours = |program: &String| !program.is_empty() && name.starts_with(program.as_str());
        let (ours, others): (Vec<_>, Vec<_>) = programs.into_iter().partition(is_ours);
        SocketHook { hook: name, ours: !ours.is_empty(), others }
    };
    const TYPES: [hook; 10] = [
        hook::BPF_CGROUP_INET4_CONNECT,
        hook::BPF_CGROUP_INET6_CONNECT,
        hook::BPF_CGROUP_UDP4_SENDMSG,
        hook::BPF_CGROUP_UDP6_SENDMSG,
        hook::BPF_CGROUP_UDP4_RECVMSG,
        hook::BPF_CGROUP_UDP6_RECVMSG,
        hook::BPF_CGROUP_INET4_GETPEERNAME,
        hook::BPF_CGROUP_INET6_GETPEERNAME,
        hook::BPF_CGROUP_INET4_BIND,
        hook::BPF_CGROUP_INET6_BIND,
    ];
    Ok(object::SOCKET_HOOKS.into_iter().chain(object::BIND_HOOKS).zip(TYPES).map(look).collect())
}

impl Netlink {
    /// Removes the clsact qdiscs of the devices that `removed` says something was removed from as a
    /// clsact filter, where nobody has a filter any more. What was removed, in words.
    ///
    /// # Errors
    /// When the kernel does not show or remove them.
    pub async fn remove_empty_qdiscs(
        &self,
        links: &BTreeMap<u32, String>,
        removed: &[String],
    ) -> Result<Vec<String>, KernelError> {
        let mut gone = Vec::new();
        for (ifindex, name) in links {
            let ours = |what: &String| what.ends_with(&format!(" of {name} (clsact)"));
            if removed.iter().any(ours) && self.filters(*ifindex).await?.is_empty() {
                let mut request = self.handle().qdisc().del(ifindex.cast_signed());
                request.message_mut().header.parent = TcHandle::CLSACT;
                request.execute().await?;
                gone.push(format!("clsact qdisc of {name}"));
            }
        }
        Ok(gone)
    }

    /// The filters of a clsact qdisc; none where there is no such qdisc.
    async fn filters(&self, ifindex: u32) -> Result<Vec<(&'static str, TcMessage)>, KernelError> {
        let ifindex = ifindex.cast_signed();
        let handle = self.handle();
        // One after the other: a socket has one dump at a time.
        let ingress: Vec<TcMessage> =
            collect(handle.traffic_filter(ifindex).get().ingress().execute()).await?;
        let egress: Vec<TcMessage> = collect(handle.traffic_filter(ifindex).get().egress().execute()).await?;
        let ingress = ingress.into_iter().map(|filter| ("ingress", filter));
        Ok(ingress.chain(egress.into_iter().map(|filter| ("egress", filter))).collect())
    }
}
