//! The programs that others go on in (`proxy_common::maps::tails`).

use aya::{
    Ebpf,
    maps::{MapData, ProgramArray},
    programs::SchedClassifier,
};
use proxy_common::maps::tails::Tail;

use super::{error::KernelError, object, pins::Pins};

const PIN: &str = "tails";

/// Those for devices with an Ethernet header, or without, each with its place in the array.
pub(super) fn programs(ethernet: bool) -> impl Iterator<Item = (u32, &'static str)> {
    Tail::ALL.iter().map(move |tail| (tail.index(ethernet), tail.program(ethernet)))
}

/// Enters the loaded programs into the pinned array. Those of an earlier agent that are still
/// attached go on in them from here on.
///
/// # Errors
/// When the kernel refuses one.
pub(super) fn fill(ebpf: &mut Ebpf, pins: &Pins, ethernet: bool) -> Result<(), KernelError> {
    let map_error = |source| KernelError::Map { name: PIN, source };
    let mut array = ProgramArray::try_from(object::pinned(pins, PIN)?).map_err(map_error)?;
    enter(ebpf, &mut array, programs(ethernet))
}

/// Enters these loaded programs into the array, each at its place.
///
/// # Errors
/// When the kernel refuses one.
pub(super) fn enter(
    ebpf: &mut Ebpf,
    array: &mut ProgramArray<MapData>,
    programs: impl IntoIterator<Item = (u32, &'static str)>,
) -> Result<(), KernelError> {
    let map_error = |source| KernelError::Map { name: PIN, source };
    for (index, name) in programs {
        let program = object::program::<SchedClassifier>(ebpf, name)?;
        let fd = program.fd().map_err(|source| KernelError::Program { name, source })?;
        array.set(index, fd, 0).map_err(map_error)?;
    }
    Ok(())
}
