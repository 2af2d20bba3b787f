//! Loads programs on all CPUs. The kernel verifies each for itself, which is most of what an agent waits for when it
//! starts; for who may load any program (`CAP_BPF`), no lock stands between two of them (`bpf_check` in
//! kernel/bpf/verifier.c).

use std::{
    collections::BTreeSet,
    num::NonZero,
    panic,
    sync::{Mutex, PoisonError},
    thread,
};

use aya::{
    Ebpf,
    programs::{Program, ProgramError},
};

use crate::kernel::error::KernelError;

/// Loads those of the programs that are not loaded yet.
///
/// # Errors
/// When the object has no such program for devices or cgroups, or the kernel refuses one. Others may be loaded then.
pub(in crate::kernel) fn load_programs(
    ebpf: &mut Ebpf,
    names: impl IntoIterator<Item = &'static str>,
) -> Result<(), KernelError> {
    let mut missing: BTreeSet<_> = names.into_iter().collect();
    let due: Vec<_> = ebpf
        .programs_mut()
        .filter_map(|(name, program)| missing.take(name).map(|name| (name, program)))
        .filter(|(_, program)| program.fd().is_err())
        .collect();
    if let Some(name) = missing.first() {
        return Err(KernelError::Program { name, source: ProgramError::NotLoaded });
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(due.len());
    let due = Mutex::new(due);
    let next = || due.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let load_all = || -> Result<(), KernelError> {
        while let Some((name, program)) = next() {
            verify(program).map_err(|source| KernelError::Program { name, source })?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(load_all)).collect();
        let own = load_all();
        let others = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|payload| panic::resume_unwind(payload)));
        others.fold(own, Result::and)
    })
}

fn verify(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::SchedClassifier(program) => program.load(),
        Program::CgroupSockAddr(program) => program.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}
