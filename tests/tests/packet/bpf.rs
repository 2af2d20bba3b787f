//! bpf(2) as tests and benchmarks of packets need it: programs to compare with, runs at any
//! hook, and rows of maps.

use std::{
    ffi::CString,
    io,
    mem::zeroed,
    net::IpAddr,
    os::{
        fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use aya_obj::generated::{bpf_attach_type, bpf_attr, bpf_cmd, bpf_insn, bpf_prog_info, bpf_prog_type};

/// Positions among the 32-bit fields of `struct __sk_buff` (linux/bpf.h).
const SKB_INGRESS_IFINDEX: usize = 9;
const SKB_IFINDEX: usize = 10;

/// The kind of a program, as far as its context and its verdicts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tc,
    Xdp,
}

impl Kind {
    /// The verdict that lets a packet go on.
    pub(crate) fn pass(self) -> i32 {
        match self {
            Self::Tc => -1,
            Self::Xdp => 2,
        }
    }
}

/// What a program made of a packet.
pub(crate) struct Run {
    pub(crate) verdict: i32,
    pub(crate) packet: Vec<u8>,
    /// Mean of the repetitions.
    pub(crate) nanoseconds: u32,
}

/// Sizes of a loaded program.
pub(crate) struct Info {
    /// Instructions the verifier walked.
    pub(crate) verified: u32,
    /// Instructions of the program.
    pub(crate) instructions: u32,
    /// Bytes of machine code.
    pub(crate) machine_code: u32,
}

pub(crate) fn bpf(cmd: bpf_cmd, attr: &mut bpf_attr) -> io::Result<RawFd> {
    // SAFETY: attr is a whole bpf_attr whose pointers the callers below keep valid for the
    // call, for as many elements as the attr says.
    let ret =
        unsafe { libc::syscall(libc::SYS_bpf, cmd as libc::c_long, &raw mut *attr, size_of::<bpf_attr>()) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret as RawFd) }
}

pub(crate) fn attr() -> bpf_attr {
    // SAFETY: a union of integers, for which zero is valid.
    unsafe { zeroed() }
}

pub(crate) fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A program of two instructions: return the verdict that lets a packet go on.
pub(crate) fn noop(kind: Kind) -> io::Result<OwnedFd> {
    load(kind, &[insn(MOVE, 0, 0, 0, kind.pass()), insn(EXIT, 0, 0, 0, 0)])
}

/// An XDP program that asks the routing tables for the way to `to`, for a packet that came in
/// by `ifindex`, and lets the packet go on.
pub(crate) fn route(to: IpAddr, ifindex: u32) -> io::Result<OwnedFd> {
    const SIZE: i16 = 64;
    const FIB_LOOKUP: i32 = 69;
    // `struct bpf_fib_lookup` (linux/bpf.h): family, interface, destination.
    let mut params = [0u8; SIZE as usize];
    let mut put = |at: usize, bytes: &[u8]| params[at..at + bytes.len()].copy_from_slice(bytes);
    put(8, &ifindex.to_ne_bytes());
    match to {
        IpAddr::V4(to) => {
            put(0, &[libc::AF_INET as u8]);
            put(32, &to.octets());
        }
        IpAddr::V6(to) => {
            put(0, &[libc::AF_INET6 as u8]);
            put(32, &to.octets());
        }
    }
    let words = params.as_chunks::<4>().0.iter().map(|word| i32::from_ne_bytes(*word));
    let stores = words.zip((-SIZE..0).step_by(4));
    let mut program: Vec<_> = stores.map(|(word, at)| insn(STORE_WORD, 10, 0, at, word)).collect();
    program.extend([
        // r1 is the context, r2 the parameters on the stack.
        insn(MOVE_REGISTER, 2, 10, 0, 0),
        insn(ADD, 2, 0, 0, -i32::from(SIZE)),
        insn(MOVE, 3, 0, 0, i32::from(SIZE)),
        insn(MOVE, 4, 0, 0, 0),
        insn(CALL, 0, 0, 0, FIB_LOOKUP),
        // Zero is success, which becomes the verdict to go on.
        insn(ADD, 0, 0, 0, Kind::Xdp.pass()),
        insn(EXIT, 0, 0, 0, 0),
    ]);
    load(Kind::Xdp, &program)
}

// Opcodes (RFC 9669).
pub(crate) const MOVE: u8 = 0xb7;
pub(crate) const MOVE_REGISTER: u8 = 0xbf;
pub(crate) const ADD: u8 = 0x07;
pub(crate) const STORE_WORD: u8 = 0x62;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const EXIT: u8 = 0x95;

/// An instruction as the kernel reads it (little endian): opcode, registers, offset, constant.
pub(crate) type Instruction = [u8; 8];

pub(crate) fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Instruction {
    let ([o0, o1], [i0, i1, i2, i3]) = (off.to_ne_bytes(), imm.to_ne_bytes());
    [code, dst | src << 4, o0, o1, i0, i1, i2, i3]
}

pub(crate) fn load(kind: Kind, program: &[Instruction]) -> io::Result<OwnedFd> {
    let mut attr = attr();
    // SAFETY: this member of the union is the one the command reads.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.prog_type = match kind {
        Kind::Tc => bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS,
        Kind::Xdp => bpf_prog_type::BPF_PROG_TYPE_XDP,
    } as u32;
    load.insns = program.as_ptr() as u64;
    load.insn_cnt = program.len() as u32;
    load.license = c"GPL".as_ptr() as u64;
    bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr).map(owned)
}

/// Runs `program` `repeat` times on one packet, at the hook of device `ifindex`, by which it came
/// in. What one repetition changes in the packet, the next one sees.
pub(crate) fn run(
    program: BorrowedFd<'_>,
    kind: Kind,
    packet: &[u8],
    ifindex: u32,
    repeat: u32,
) -> io::Result<Run> {
    let mut out = vec![0; packet.len() + 64];
    // The beginnings of `struct __sk_buff` and `struct xdp_md`.
    let mut skb = [0u32; 11];
    (skb[SKB_INGRESS_IFINDEX], skb[SKB_IFINDEX]) = (ifindex, ifindex);
    let md = [0, packet.len() as u32, 0, ifindex, 0, 0];
    let context: &[u32] = if kind == Kind::Tc { &skb } else { &md };
    let mut attr = attr();
    attr.test.prog_fd = program.as_raw_fd() as u32;
    attr.test.data_in = packet.as_ptr() as u64;
    attr.test.data_size_in = packet.len() as u32;
    attr.test.data_out = out.as_mut_ptr() as u64;
    attr.test.data_size_out = out.len() as u32;
    attr.test.ctx_in = context.as_ptr() as u64;
    attr.test.ctx_size_in = size_of_val(context) as u32;
    attr.test.repeat = repeat;
    bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr)?;
    // SAFETY: the test member was the one used; the kernel filled in the results.
    let (verdict, len, nanoseconds) =
        unsafe { (attr.test.retval as i32, attr.test.data_size_out, attr.test.duration) };
    out.truncate(len as usize);
    Ok(Run { verdict, packet: out, nanoseconds })
}

/// The sizes of a program.
pub(crate) fn info(program: BorrowedFd<'_>) -> io::Result<Info> {
    // SAFETY: plain integers.
    let mut info: bpf_prog_info = unsafe { zeroed() };
    let mut attr = attr();
    attr.info.bpf_fd = program.as_raw_fd() as u32;
    attr.info.info_len = size_of::<bpf_prog_info>() as u32;
    attr.info.info = (&raw mut info) as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(Info {
        verified: info.verified_insns,
        instructions: info.xlated_prog_len / size_of::<bpf_insn>() as u32,
        machine_code: info.jited_prog_len,
    })
}

/// Attaches an XDP program to a device for as long as the link is held.
pub(crate) fn attach_xdp(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    let mut attr = attr();
    attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attr.link_create.__bindgen_anon_2.target_ifindex = ifindex;
    attr.link_create.attach_type = bpf_attach_type::BPF_XDP as u32;
    bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr).map(owned)
}

/// A pinned map.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = attr();
    // SAFETY: this member of the union is the one the command reads.
    unsafe { &mut attr.__bindgen_anon_4 }.pathname = path.as_ptr() as u64;
    bpf(bpf_cmd::BPF_OBJ_GET, &mut attr).map(owned)
}

/// Inserts or replaces a row. The sizes of `K` and `V` must be the map's.
pub(crate) fn put<K: aya::Pod, V: aya::Pod>(map: BorrowedFd<'_>, key: &K, value: &V) -> io::Result<()> {
    let mut attr = attr();
    // SAFETY: this member of the union is the one the command reads.
    let element = unsafe { &mut attr.__bindgen_anon_2 };
    element.map_fd = map.as_raw_fd() as u32;
    element.key = std::ptr::from_ref(key) as u64;
    element.__bindgen_anon_1.value = std::ptr::from_ref(value) as u64;
    bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr).map(drop)
}
