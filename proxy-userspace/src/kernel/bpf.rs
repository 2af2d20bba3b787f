//! bpf(2) calls that aya has no interface for: batches, test runs, waits, and what it lacks for links.

mod grace;
mod link;
mod rows;

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use aya::Pod;
use aya_obj::generated::{bpf_attr, bpf_cmd};

pub(super) use grace::wait_for_programs;
pub(super) use link::{
    iter_link, link_cgroup, link_detach, link_device, link_open, link_pin, link_update, xdp_link,
};
pub(super) use rows::{RawMap, typed};

/// `BPF_ANY`: whether the row is there or not.
pub(super) const ANY: u64 = 0;
/// `BPF_NOEXIST`: only if the row is not there.
pub(super) const NOEXIST: u64 = 1;

/// Rows per call; more brings no speed (measured: 256 equals 65536 within noise).
const BATCH: usize = 256;
/// Position of `ingress_ifindex` among the 32-bit fields of `struct __sk_buff` (linux/bpf.h).
const SK_BUFF_INGRESS_IFINDEX: usize = 9;
/// Position of `ifindex`.
const SK_BUFF_IFINDEX: usize = 10;

fn bpf(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i64> {
    // SAFETY: attr is a whole bpf_attr; the callers below see to it that every pointer in
    // it is valid for as many elements as it says, for the duration of the call.
    let ret =
        unsafe { libc::syscall(libc::SYS_bpf, cmd as libc::c_long, &raw mut *attr, size_of::<bpf_attr>()) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

fn zeroed_attr() -> bpf_attr {
    // SAFETY: a union of integers; zero is what the kernel wants in unused fields.
    unsafe { std::mem::zeroed() }
}

/// A kind of object that has ids.
#[derive(Clone, Copy, Debug)]
pub(super) enum ObjectKind {
    Map,
    Program,
}

/// Whether the kernel has the object with this id, found without opening it.
///
/// Opening a map of programs and closing it again has the kernel empty it if nothing else has
/// it open; when that happens a second time before the first is carried out, the kernel never
/// frees the map (`prog_array_map_clear` in kernel/bpf/arraymap.c takes a reference for each time,
/// and gives one back).
///
/// # Errors
/// When the kernel does not tell.
pub(super) fn exists(kind: ObjectKind, id: u32) -> io::Result<bool> {
    let cmd = match kind {
        ObjectKind::Map => bpf_cmd::BPF_MAP_GET_NEXT_ID,
        ObjectKind::Program => bpf_cmd::BPF_PROG_GET_NEXT_ID,
    };
    let mut attr = zeroed_attr();
    attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id.saturating_sub(1);
    match bpf(cmd, &mut attr) {
        // SAFETY: the call has succeeded, which writes this member.
        Ok(_) => Ok(unsafe { attr.__bindgen_anon_6.next_id } == id),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Inserts or replaces rows. The sizes of `K` and `V` must be the map's.
///
/// # Errors
/// The number of rows written before the failure, and the failure.
pub(super) fn update_batch<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    keys: &[K],
    values: &[V],
) -> Result<(), (usize, io::Error)> {
    debug_assert_eq!(keys.len(), values.len());
    let chunks = keys.chunks(BATCH).zip(values.chunks(BATCH));
    for (i, (keys, values)) in chunks.enumerate() {
        let mut attr = zeroed_attr();
        attr.batch.map_fd = map.as_raw_fd() as u32;
        attr.batch.keys = keys.as_ptr() as u64;
        attr.batch.values = values.as_ptr() as u64;
        attr.batch.count = keys.len() as u32;
        bpf(bpf_cmd::BPF_MAP_UPDATE_BATCH, &mut attr).map_err(|e| (i * BATCH + written(&attr), e))?;
    }
    Ok(())
}

/// Deletes rows; one that is not there ends the call with `ENOENT`.
///
/// # Errors
/// The number of rows deleted before the failure, and the failure.
pub(super) fn delete_batch<K: Pod>(map: BorrowedFd<'_>, keys: &[K]) -> Result<(), (usize, io::Error)> {
    for (i, keys) in keys.chunks(BATCH).enumerate() {
        let mut attr = zeroed_attr();
        attr.batch.map_fd = map.as_raw_fd() as u32;
        attr.batch.keys = keys.as_ptr() as u64;
        attr.batch.count = keys.len() as u32;
        bpf(bpf_cmd::BPF_MAP_DELETE_BATCH, &mut attr).map_err(|e| (i * BATCH + written(&attr), e))?;
    }
    Ok(())
}

fn written(attr: &bpf_attr) -> usize {
    // SAFETY: the batch member was the one used; the kernel left the count of rows done.
    unsafe { attr.batch.count as usize }
}

/// The value of `key`, if there is one. The sizes of `K` and `V` must be the map's.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn lookup<K: Pod, V: Pod>(map: BorrowedFd<'_>, key: &K) -> io::Result<Option<V>> {
    read(bpf_cmd::BPF_MAP_LOOKUP_ELEM, map, key)
}

fn read<K: Pod, V: Pod>(cmd: bpf_cmd, map: BorrowedFd<'_>, key: &K) -> io::Result<Option<V>> {
    let mut value = std::mem::MaybeUninit::<V>::uninit();
    let mut attr = zeroed_attr();
    attr.__bindgen_anon_2.map_fd = map.as_raw_fd() as u32;
    attr.__bindgen_anon_2.key = std::ptr::from_ref(key) as u64;
    attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
    match bpf(cmd, &mut attr) {
        // SAFETY: the kernel has written a whole value.
        Ok(_) => Ok(Some(unsafe { value.assume_init() })),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Calls `row` for every row. Rows that come and go meanwhile may be seen or not, and
/// some twice.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn lookup_all<K: Pod, V: Pod>(map: BorrowedFd<'_>, mut row: impl FnMut(K, V)) -> io::Result<()> {
    let mut room = BATCH;
    let mut token: Option<u64> = None;
    loop {
        let mut keys: Vec<K> = Vec::with_capacity(room);
        let mut values: Vec<V> = Vec::with_capacity(room);
        let mut next = 0u64;
        let mut attr = zeroed_attr();
        attr.batch.map_fd = map.as_raw_fd() as u32;
        attr.batch.in_batch = token.as_ref().map_or(0, |t| std::ptr::from_ref(t) as u64);
        attr.batch.out_batch = (&raw mut next) as u64;
        attr.batch.keys = keys.as_mut_ptr() as u64;
        attr.batch.values = values.as_mut_ptr() as u64;
        attr.batch.count = room as u32;
        let result = bpf(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr);
        let last = match &result {
            Ok(_) => false,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => true,
            // One hash bucket holds more rows than there is room for.
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => {
                room *= 2;
                continue;
            }
            Err(_) => return result.map(drop),
        };
        let count = written(&attr).min(room);
        // SAFETY: the kernel filled `count` keys and values, within the capacity given.
        unsafe {
            keys.set_len(count);
            values.set_len(count);
        }
        keys.into_iter().zip(values).for_each(|(k, v)| row(k, v));
        if last {
            return Ok(());
        }
        token = Some(next);
    }
}

/// Ids of the programs at a hook of a cgroup, in their order.
///
/// # Errors
/// When the kernel refuses, for one because there are more than anybody attaches.
pub(super) fn cgroup_programs(cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<Vec<u32>> {
    let mut ids = [0u32; 64];
    let mut attr = zeroed_attr();
    attr.query.__bindgen_anon_1.target_fd = cgroup.as_raw_fd() as u32;
    attr.query.attach_type = attach_type;
    attr.query.prog_ids = (&raw mut ids) as u64;
    attr.query.__bindgen_anon_2.prog_cnt = ids.len() as u32;
    bpf(bpf_cmd::BPF_PROG_QUERY, &mut attr)?;
    // SAFETY: the query member was the one used; the kernel left the number of ids it wrote.
    let count = unsafe { attr.query.__bindgen_anon_2.prog_cnt } as usize;
    Ok(ids.get(..count).unwrap_or_default().to_vec())
}

/// What a program made of a packet under `BPF_PROG_TEST_RUN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The program's return value.
    pub action: i32,
    /// The packet afterwards.
    pub packet: Vec<u8>,
    /// Mean time of one run in nanoseconds.
    pub nanoseconds: u32,
}

/// Devices that a packet meets, by index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    /// Where it came in; 0 if this host made it.
    pub(super) came_by: u32,
    /// Where the program runs; 0 is loopback.
    pub(super) at: u32,
}

/// Runs a tc program `repeat` times on `packet`, as if it passed the loopback device of
/// this network namespace, having come in by `ingress_ifindex` (0: made by this host).
/// Nothing is sent; maps change as they would.
///
/// # Errors
/// When the kernel refuses the packet, for one because it is shorter than an Ethernet header.
pub(super) fn test_run(
    program: BorrowedFd<'_>,
    packet: &[u8],
    ingress_ifindex: u32,
    repeat: u32,
) -> io::Result<Run> {
    test_run_at(program, packet, Passage { came_by: ingress_ifindex, at: 0 }, repeat)
}

/// The same at any device of this network namespace.
///
/// # Errors
/// The same, and when there is no such device.
pub(super) fn test_run_at(
    program: BorrowedFd<'_>,
    packet: &[u8],
    passage: Passage,
    repeat: u32,
) -> io::Result<Run> {
    let mut out = vec![0u8; packet.len() + 256];
    // The start of `struct __sk_buff`; what lies beyond it counts as zero.
    let mut context = [0u32; 11];
    context[SK_BUFF_INGRESS_IFINDEX] = passage.came_by;
    context[SK_BUFF_IFINDEX] = passage.at;
    let mut attr = zeroed_attr();
    attr.test.prog_fd = program.as_raw_fd() as u32;
    attr.test.data_in = packet.as_ptr() as u64;
    attr.test.data_size_in = packet.len() as u32;
    attr.test.data_out = out.as_mut_ptr() as u64;
    attr.test.data_size_out = out.len() as u32;
    attr.test.ctx_in = (&raw const context) as u64;
    attr.test.ctx_size_in = size_of_val(&context) as u32;
    attr.test.repeat = repeat;
    bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr)?;
    // SAFETY: the test member was the one used; the kernel filled in the results.
    let (retval, len, duration) = unsafe { (attr.test.retval, attr.test.data_size_out, attr.test.duration) };
    out.truncate(len as usize);
    Ok(Run { action: retval as i32, packet: out, nanoseconds: duration })
}

/// The kernel's id of an open cgroup directory: the inode number of cgroup v2.
///
/// # Errors
/// When it cannot be read.
pub(super) fn cgroup_id(dir: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(dir)?.st_ino)
}

/// `bpf_get_netns_cookie` of the network namespace this thread is in.
///
/// # Errors
/// When no socket can be made, or the kernel is older than 5.14.
pub(super) fn netns_cookie() -> io::Result<u64> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the option writes a u64, for which there is room.
    let ret = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if ret == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}
