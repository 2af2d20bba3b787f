//! Programs that the kernel runs over all elements of a map, pinned like links: whoever reads such a pin has them
//! run, and gets what they write. The kernel lists the storage of sockets to programs alone; the connections of a
//! large table are judged where they lie.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::AsFd as _,
    path::Path,
    thread,
};

use aya::{Btf, Ebpf, Pod, maps::MapData, programs::Iter};

use super::{bpf, error::KernelError, object, pins::Pins};

/// An iterator.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapIterator {
    /// Of the program, which its pin has too.
    name: &'static str,
    /// The map that it goes through.
    map: &'static str,
    /// The kernel's name of its kind.
    kind: &'static str,
}

/// What sockets hold, by family.
pub(super) const LIST_SOCKETS: [MapIterator; 2] = [
    MapIterator { name: "list_sockets_v4", map: "socket_datagrams_v4", kind: "bpf_sk_storage_map" },
    MapIterator { name: "list_sockets_v6", map: "socket_datagrams_v6", kind: "bpf_sk_storage_map" },
];

/// Connections, by family.
pub(super) const SWEEPS: [MapIterator; 2] = [
    MapIterator { name: "sweep_v4", map: "conntrack_v4", kind: "bpf_map_elem" },
    MapIterator { name: "sweep_v6", map: "conntrack_v6", kind: "bpf_map_elem" },
];

/// Elements that the kernel looks at before it pauses, if it has nothing to show (`MAX_ITER_OBJECTS` in
/// kernel/bpf/bpf_iter.c).
const ELEMENTS: u32 = 1_000_000;
/// Pauses in a row, at most: as many as the largest map takes.
const PAUSES: u32 = u32::MAX / ELEMENTS + 1;

/// Bytes that are read at once. The kernel has as much ready (`bpf_seq_read` in kernel/bpf/bpf_iter.c).
const CHUNK: usize = 8 * 4096;

/// Loads the programs and pins the iterators.
///
/// # Errors
/// When the kernel has no type information (`CONFIG_DEBUG_INFO_BTF`), or refuses a program.
pub(super) fn pin(ebpf: &mut Ebpf, pins: &Pins, iterators: &[MapIterator]) -> Result<(), KernelError> {
    let btf = Btf::from_sys_fs().map_err(|error| KernelError::System {
        what: "read the types of the kernel".into(),
        source: io::Error::other(error),
    })?;
    iterators.iter().try_for_each(|iterator| iterator.pin(ebpf, pins, &btf))
}

impl MapIterator {
    fn pin(&self, ebpf: &mut Ebpf, pins: &Pins, btf: &Btf) -> Result<(), KernelError> {
        let Self { name, kind, .. } = *self;
        let program = object::program::<Iter>(ebpf, name)?;
        program.load(kind, btf).map_err(|source| KernelError::Program { name, source })?;
        self.pin_loaded(ebpf, pins)
    }

    /// The name of its pin.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Its program is loaded: a kernel without type information takes none.
    pub(super) fn is_loaded(&self, ebpf: &mut Ebpf) -> bool {
        object::program::<Iter>(ebpf, self.name).is_ok_and(|program| program.fd().is_ok())
    }

    /// Pins it, or replaces the program of the pinned one.
    ///
    /// # Errors
    /// When its program is not loaded, or the kernel refuses.
    pub(super) fn pin_loaded(&self, ebpf: &mut Ebpf, pins: &Pins) -> Result<(), KernelError> {
        let Self { name, map, .. } = *self;
        let program = object::program::<Iter>(ebpf, name)?;
        let program = program.fd().map_err(|source| KernelError::Program { name, source })?.as_fd();
        let map =
            MapData::from_pin(pins.map(map)).map_err(|source| KernelError::Map { name: map, source })?;
        let pin = pins.link(name);
        let attached = match bpf::link_open(&pin) {
            Ok(link) => bpf::link_update(link.as_fd(), program),
            Err(_) => {
                bpf::iter_link(program, map.fd().as_fd()).and_then(|link| bpf::link_pin(link.as_fd(), &pin))
            }
        };
        attached.map_err(|source| KernelError::System { what: format!("pin {name}"), source })
    }

    /// Runs the program over all elements and calls `visit` with each `T` that it writes. Of elements that come and
    /// go meanwhile some are missing.
    ///
    /// # Errors
    /// When there is no such pin, or the iterator cannot be read.
    pub(super) fn run<T: Pod>(&self, pins: &Pins, visit: impl FnMut(T)) -> io::Result<()> {
        read(&pins.link(self.name), visit)
    }
}

fn read<T: Pod>(pin: &Path, mut visit: impl FnMut(T)) -> io::Result<()> {
    let mut file = File::open(pin)?;
    let mut chunk = vec![0; CHUNK];
    let (mut held, mut pauses) = (0, 0);
    loop {
        let count = match file.read(&mut chunk[held..]) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && pauses < PAUSES => {
                pauses += 1;
                // Or whoever runs the program on this CPU has been interrupted in it.
                thread::yield_now();
                continue;
            }
            Err(error) => return Err(error),
        };
        pauses = 0;
        held += count;
        let whole = held - held % size_of::<T>();
        for row in chunk[..whole].chunks_exact(size_of::<T>()) {
            // SAFETY: the bytes of a whole row, which may have any value.
            visit(unsafe { row.as_ptr().cast::<T>().read_unaligned() });
        }
        chunk.copy_within(whole..held, 0);
        held -= whole;
    }
}
