//! What the programs need of the stack. The kernel here may count less than the oldest one that they are for: in 6.1,
//! `check_max_stack_depth` in kernel/bpf/verifier.c rounds the frame of each function up to 32 bytes.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use aya_obj::generated::{
    BPF_ADD, BPF_ALU, BPF_ALU64, BPF_CALL, BPF_DW, BPF_IMM, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_MOV,
    BPF_PSEUDO_CALL, BPF_PSEUDO_FUNC, BPF_ST, BPF_STX, BPF_X, bpf_insn,
};

/// Of all frames in a chain of calls (`MAX_BPF_STACK`).
const STACK: usize = 512;
/// What a frame's size is a multiple of.
const ROUND: usize = 32;
/// The register that points behind the frame.
const FRAME_POINTER: u8 = 10;

const MOVE: u32 = BPF_ALU64 | BPF_MOV | BPF_X;
const ADD: u32 = BPF_ALU64 | BPF_ADD | BPF_K;
const WIDE: u32 = BPF_LD | BPF_IMM | BPF_DW;

/// A function of a program that has been linked.
#[derive(Default)]
struct Function {
    frame: usize,
    /// Where the functions begin that it calls, itself or by a helper.
    calls: BTreeSet<usize>,
}

/// The function that the instruction at `index` calls, or hands to a helper.
fn callee(insns: &[bpf_insn], index: usize) -> Option<usize> {
    let insn = &insns[index];
    let is_call = u32::from(insn.code) == BPF_JMP | BPF_CALL && u32::from(insn.src_reg()) == BPF_PSEUDO_CALL;
    let is_callback = u32::from(insn.code) == WIDE && u32::from(insn.src_reg()) == BPF_PSEUDO_FUNC;
    (is_call || is_callback).then(|| index + 1)?.checked_add_signed(insn.imm as isize)
}

/// The lowest byte of the frame that an instruction names. `copies` are registers that point into it.
fn lowest(insn: &bpf_insn, copies: &mut BTreeMap<u8, i64>) -> i64 {
    let (code, dst, src) = (u32::from(insn.code), insn.dst_reg(), insn.src_reg());
    let at = |copies: &BTreeMap<u8, i64>, register| match register {
        FRAME_POINTER => Some(0),
        other => copies.get(&other).copied(),
    };
    match code & 7 {
        BPF_ST | BPF_STX => at(copies, dst).map_or(0, |place| place + i64::from(insn.off)),
        BPF_LDX => {
            let place = at(copies, src).map_or(0, |place| place + i64::from(insn.off));
            copies.remove(&dst);
            place
        }
        BPF_ALU | BPF_ALU64 | BPF_LD => {
            let place = match code {
                MOVE => at(copies, src),
                ADD => copies.get(&dst).map(|place| place + i64::from(insn.imm)),
                _ => None,
            };
            copies.remove(&dst);
            copies.extend(place.map(|place| (dst, place)));
            place.unwrap_or(0)
        }
        _ => 0,
    }
}

fn functions(insns: &[bpf_insn]) -> BTreeMap<usize, Function> {
    let begin = (0..insns.len()).filter_map(|index| callee(insns, index)).chain([0]);
    let mut functions: BTreeMap<_, _> = begin.map(|start| (start, Function::default())).collect();
    let mut copies = BTreeMap::new();
    for (index, insn) in insns.iter().enumerate() {
        if functions.contains_key(&index) {
            copies.clear();
        }
        let lowest = lowest(insn, &mut copies);
        let Some((_, function)) = functions.range_mut(..=index).next_back() else { continue };
        function.frame = function.frame.max(usize::try_from(-lowest).unwrap_or(0));
        function.calls.extend(callee(insns, index));
    }
    functions
}

/// Bytes of the deepest chain of calls from the function at `start`.
fn depth(functions: &BTreeMap<usize, Function>, start: usize) -> usize {
    let function = &functions[&start];
    let below = function.calls.iter().map(|callee| depth(functions, *callee)).max().unwrap_or(0);
    function.frame.max(1).next_multiple_of(ROUND) + below
}

#[test]
fn the_oldest_kernel_has_stack_enough() {
    let mut object = super::parse().expect("the object");
    let sections: HashSet<_> = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_calls(&sections).expect("programs that link");
    let mut depths = BTreeSet::new();
    for (name, program) in &object.programs {
        let functions = functions(&object.functions[&program.function_key()].instructions);
        assert!(functions[&0].frame <= STACK, "{name}: {} bytes in one frame", functions[&0].frame);
        depths.insert((depth(&functions, 0), name));
    }
    println!("{depths:?}");
    let (depth, name) = depths.last().expect("programs");
    assert!((1..=STACK).contains(depth), "{name}: {depth} bytes");
    assert!(*depth > 400, "the programs are known to need more");
}
