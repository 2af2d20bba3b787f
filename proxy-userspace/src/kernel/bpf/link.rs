//! Links: what ties a program to a cgroup or a device for as long as somebody holds it.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_link_info, bpf_link_type};

use super::{bpf, zeroed_attr};

/// Puts `program` in the place of the one `link` attaches.
///
/// # Errors
/// When the kernel refuses, for one because the cgroup is gone.
pub(in crate::kernel) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = zeroed_attr();
    attr.link_update.link_fd = link.as_raw_fd() as u32;
    attr.link_update.__bindgen_anon_1.new_prog_fd = program.as_raw_fd() as u32;
    bpf(bpf_cmd::BPF_LINK_UPDATE, &mut attr).map(drop)
}

/// Detaches a link at once. Without that its end waits for the kernel's own time.
///
/// # Errors
/// When its device is gone already.
pub(in crate::kernel) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = zeroed_attr();
    attr.link_detach.link_fd = link.as_raw_fd() as u32;
    bpf(bpf_cmd::BPF_LINK_DETACH, &mut attr).map(drop)
}

/// Opens a pinned link, or whatever else is pinned there. By its id it would take `CAP_SYS_ADMIN`.
///
/// # Errors
/// When there is none.
pub(in crate::kernel) fn link_open(pin: &Path) -> io::Result<OwnedFd> {
    let path = c_path(pin)?;
    let mut attr = zeroed_attr();
    attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    owned(bpf(bpf_cmd::BPF_OBJ_GET, &mut attr)?)
}

/// Pins a link, which then lives on without us.
///
/// # Errors
/// When something has that name already, or it is not on a BPF file system.
pub(in crate::kernel) fn link_pin(link: BorrowedFd<'_>, pin: &Path) -> io::Result<()> {
    let path = c_path(pin)?;
    let mut attr = zeroed_attr();
    attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    attr.__bindgen_anon_4.bpf_fd = link.as_raw_fd() as u32;
    bpf(bpf_cmd::BPF_OBJ_PIN, &mut attr).map(drop)
}

/// Attaches an XDP program to a device that has none, until the link is closed. `flags` are
/// `XDP_FLAGS_*` of linux/if_link.h. aya's own call takes `EINVAL` for a kernel without such
/// links and goes on to attach without one.
///
/// # Errors
/// When the kernel or the driver refuses.
pub(in crate::kernel) fn xdp_link(program: BorrowedFd<'_>, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
    let mut attr = zeroed_attr();
    attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attr.link_create.__bindgen_anon_2.target_ifindex = ifindex;
    attr.link_create.attach_type = bpf_attach_type::BPF_XDP as u32;
    attr.link_create.flags = flags;
    owned(bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr)?)
}

/// Ties an iterator to the map that it goes through.
///
/// # Errors
/// When the kernel refuses, for one because the map's values are too small.
pub(in crate::kernel) fn iter_link(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // The `map` member of `union bpf_iter_link_info` (linux/bpf.h).
    let map_fd = map.as_raw_fd() as u32;
    let mut attr = zeroed_attr();
    attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attr.link_create.attach_type = bpf_attach_type::BPF_TRACE_ITER as u32;
    attr.link_create.__bindgen_anon_3.__bindgen_anon_1.iter_info = (&raw const map_fd) as u64;
    attr.link_create.__bindgen_anon_3.__bindgen_anon_1.iter_info_len = size_of_val(&map_fd) as u32;
    owned(bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr)?)
}

/// What the kernel tells about a link to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel) struct LinkFacts {
    /// The device, 0 once it is gone.
    pub(in crate::kernel) ifindex: u32,
    /// Id of the program.
    pub(in crate::kernel) program: u32,
}

/// The device and the program of an XDP or TCX link; nothing if it is another kind of link.
///
/// # Errors
/// When the kernel refuses.
pub(in crate::kernel) fn link_device(link: BorrowedFd<'_>) -> io::Result<Option<LinkFacts>> {
    let info = info(link)?;
    let (xdp, tcx) = (bpf_link_type::BPF_LINK_TYPE_XDP as u32, bpf_link_type::BPF_LINK_TYPE_TCX as u32);
    let ifindex = match info.type_ {
        // SAFETY: the kernel fills the xdp member of an XDP link.
        kind if kind == xdp => unsafe { info.__bindgen_anon_1.xdp.ifindex },
        // SAFETY: and the tcx member of a TCX link.
        kind if kind == tcx => unsafe { info.__bindgen_anon_1.tcx.ifindex },
        _ => return Ok(None),
    };
    Ok(Some(LinkFacts { ifindex, program: info.prog_id }))
}

/// The cgroup a link attaches to, 0 once it is gone.
///
/// # Errors
/// When the kernel refuses.
pub(in crate::kernel) fn link_cgroup(link: BorrowedFd<'_>) -> io::Result<u64> {
    let info = info(link)?;
    // SAFETY: this is a cgroup link, for which the kernel fills the cgroup member.
    Ok(unsafe { info.__bindgen_anon_1.cgroup.cgroup_id })
}

fn info(link: BorrowedFd<'_>) -> io::Result<bpf_link_info> {
    // SAFETY: plain integers.
    let mut info: bpf_link_info = unsafe { std::mem::zeroed() };
    info_of(link, &mut info)?;
    Ok(info)
}

/// Has the kernel describe one of its objects; `T` is the struct it has for objects of that kind.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn info_of<T>(object: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let mut attr = zeroed_attr();
    attr.info.bpf_fd = object.as_raw_fd() as u32;
    attr.info.info_len = size_of::<T>() as u32;
    attr.info.info = std::ptr::from_mut(info) as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr).map(drop)
}

pub(super) fn owned(fd: i64) -> io::Result<OwnedFd> {
    // SAFETY: the kernel returned a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
