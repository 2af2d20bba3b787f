//! What UDP sockets hold. The kernel lists the storage of sockets to programs alone: these are iterators, pinned
//! like links, and whoever reads such a pin has them run over all sockets.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::AsFd as _,
};

use aya::{Btf, Ebpf, maps::MapData, programs::Iter};
use proxy_common::maps::socket_datagrams::ListedPair;

use super::{bpf, error::KernelError, family::KernelAddr, object, pins::Pins};

/// Names of the programs, which their pins have too, and of the maps that they go through.
const LISTS: [(&str, &str); 2] =
    [("list_sockets_v4", "socket_datagrams_v4"), ("list_sockets_v6", "socket_datagrams_v6")];

/// The kernel's name of the kind of iterator.
const KIND: &str = "bpf_sk_storage_map";

/// Times in a row that the kernel may pause before it shows anything: it looks at a million sockets in between.
const PAUSES: usize = 16;

/// Loads the programs and pins the iterators.
///
/// # Errors
/// When the kernel has no type information (`CONFIG_DEBUG_INFO_BTF`), or refuses a program.
pub(super) fn pin(ebpf: &mut Ebpf, pins: &Pins) -> Result<(), KernelError> {
    let btf = Btf::from_sys_fs().map_err(|error| KernelError::System {
        what: "read the types of the kernel".into(),
        source: io::Error::other(error),
    })?;
    for (name, map) in LISTS {
        let program = object::program::<Iter>(ebpf, name)?;
        let failed = |source| KernelError::Program { name, source };
        program.load(KIND, &btf).map_err(failed)?;
        let program = program.fd().map_err(failed)?.as_fd();
        let map =
            MapData::from_pin(pins.map(map)).map_err(|source| KernelError::Map { name: map, source })?;
        let pin = pins.link(name);
        let attached = match bpf::link_open(&pin) {
            Ok(link) => bpf::link_update(link.as_fd(), program),
            Err(_) => {
                bpf::iter_link(program, map.fd().as_fd()).and_then(|link| bpf::link_pin(link.as_fd(), &pin))
            }
        };
        attached.map_err(|source| KernelError::System { what: format!("pin {name}"), source })?;
    }
    Ok(())
}

/// The pairs of all sockets, without those of `stale_sockets`, which are removed; none where the kernel has no
/// such iterators. Of sockets that come and go meanwhile some are missing.
///
/// # Errors
/// When the iterator cannot be read.
pub(super) fn read<A: KernelAddr>(pins: &Pins) -> io::Result<Vec<ListedPair<A>>> {
    let mut list = match File::open(pins.link(A::PINS.0.list_sockets)) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    let (mut pauses, mut seen) = (0, 0);
    loop {
        match list.read_to_end(&mut bytes) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && pauses < PAUSES => {
                pauses = if bytes.len() == seen { pauses + 1 } else { 0 };
                seen = bytes.len();
            }
            Err(error) => return Err(error),
        }
    }
    // SAFETY: the bytes of a whole row, which may have any value.
    let row = |bytes: &[u8]| unsafe { bytes.as_ptr().cast::<ListedPair<A>>().read_unaligned() };
    Ok(bytes.chunks_exact(size_of::<ListedPair<A>>()).map(row).collect())
}
