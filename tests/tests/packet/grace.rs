//! Programs that run while the agent waits for them.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    thread,
};

use anyhow::bail;
use aya_obj::generated::{bpf_cmd, bpf_map_type};
use proxy_userspace::dataplane::MapStore as _;
use tests::late;

use crate::{
    bench::{Bench, plans},
    bpf::{ADD, CALL, EXIT, Kind, MOVE, MOVE_REGISTER, STORE_WORD, attr, bpf, insn, load, owned, run},
    frames::{Flow, SYN, frame},
};

// Opcodes (RFC 9669).
const LOAD_LONG: u8 = 0x18;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
/// The constant of `LOAD_LONG` stands for the first row of a map.
const MAP_VALUE: u8 = 2;

/// Test runs pass this device.
const DEVICE: u32 = 1;
/// As many as the verifier allows: some milliseconds.
const CHECKSUMS: i32 = 100_000;

#[test]
fn a_program_has_ended_when_the_wait_has() {
    let mut bench = Bench::new();
    let steps = steps().expect("a map");
    let program = slow(steps.as_fd(), CHECKSUMS).expect("it loads");
    let [plan, _] = plans();
    let frame = frame(Flow::tcp((plan.pod, 40000), (plan.backend, 80)), SYN);
    let step = || step(steps.as_fd()).expect("the map's row");
    thread::scope(|scope| {
        scope.spawn(|| run(program.as_fd(), Kind::Tc, &frame, DEVICE, 1).expect("a run"));
        late::soon(|| match step() {
            NONE => bail!(late!("the program has not begun")),
            _ => Ok(()),
        })
        .expect("it begins");
        bench.maps.wait_for_programs().expect("the kernel waits");
        assert_eq!(step(), ENDED);
    });
}

/// What a program of [`slow`] has come to.
const NONE: i32 = 0;
const BEGUN: i32 = 1;
const ENDED: i32 = 2;
/// As much as a checksum may go over (kernel/net/core/filter.c).
const SUMMED: i32 = 512;

/// A map for one program of [`slow`], which says in it what it has come to.
fn steps() -> io::Result<OwnedFd> {
    let mut attr = attr();
    // SAFETY: this member of the union is the one the command reads.
    let map = unsafe { &mut attr.__bindgen_anon_1 };
    map.map_type = bpf_map_type::BPF_MAP_TYPE_ARRAY as u32;
    (map.key_size, map.value_size, map.max_entries) = (4, SUMMED as u32, 1);
    bpf(bpf_cmd::BPF_MAP_CREATE, &mut attr).map(owned)
}

/// What is in a map of [`steps`].
fn step(map: BorrowedFd<'_>) -> io::Result<i32> {
    let (key, mut value) = (0u32, [0i32; SUMMED as usize / 4]);
    let mut attr = attr();
    // SAFETY: this member of the union is the one the command reads.
    let element = unsafe { &mut attr.__bindgen_anon_2 };
    element.map_fd = map.as_raw_fd() as u32;
    element.key = (&raw const key) as u64;
    element.__bindgen_anon_1.value = (&raw mut value) as u64;
    bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut attr)?;
    Ok(value[0])
}

/// A program that takes so many checksums, and writes into a map of [`steps`] before and after.
fn slow(steps: BorrowedFd<'_>, checksums: i32) -> io::Result<OwnedFd> {
    const CHECKSUM_DIFFERENCE: i32 = 28;
    load(
        Kind::Tc,
        &[
            insn(LOAD_LONG, 6, MAP_VALUE, 0, steps.as_raw_fd()),
            insn(0, 0, 0, 0, 0),
            insn(STORE_WORD, 6, 0, 0, BEGUN),
            insn(MOVE, 7, 0, 0, checksums),
            insn(MOVE_REGISTER, 1, 6, 0, 0),
            insn(MOVE, 2, 0, 0, SUMMED),
            insn(MOVE, 3, 0, 0, 0),
            insn(MOVE, 4, 0, 0, 0),
            insn(MOVE, 5, 0, 0, 0),
            insn(CALL, 0, 0, 0, CHECKSUM_DIFFERENCE),
            insn(ADD, 7, 0, 0, -1),
            insn(JUMP_UNLESS_EQUAL, 7, 0, -8, 0),
            insn(STORE_WORD, 6, 0, 0, ENDED),
            insn(MOVE, 0, 0, 0, Kind::Tc.pass()),
            insn(EXIT, 0, 0, 0, 0),
        ],
    )
}
