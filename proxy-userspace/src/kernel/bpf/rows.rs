//! Rows of maps whose layout is known only when the program runs: keys and values as bytes.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd, OwnedFd},
    path::Path,
};

use aya::{Pod, util::nr_cpus};
use aya_obj::generated::{bpf_cmd, bpf_map_info, bpf_map_type};

use super::{bpf, link::info_of, link_open, zeroed_attr};

/// Rows per call.
const BATCH: usize = 1024;
/// The kernel's own error, which the C library does not know.
const ENOTSUPP: i32 = 524;

/// A key or value in this agent's own types; nothing if it has another size.
pub(in crate::kernel) fn typed<T: Pod>(bytes: &[u8]) -> Option<T> {
    // SAFETY: as many bytes as T has, and T is plain old data.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// A map, and the sizes of its rows in bytes.
#[derive(Debug)]
pub(in crate::kernel) struct RawMap {
    fd: OwnedFd,
    info: bpf_map_info,
    /// See [`values`](Self::values).
    values: Option<usize>,
}

impl RawMap {
    /// Opens a pinned map.
    ///
    /// # Errors
    /// When there is no such pin.
    pub(in crate::kernel) fn open(pin: &Path) -> io::Result<Self> {
        let fd = link_open(pin)?;
        // SAFETY: plain integers.
        let mut info: bpf_map_info = unsafe { std::mem::zeroed() };
        info_of(fd.as_fd(), &mut info)?;
        let kinds = [
            bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY,
            bpf_map_type::BPF_MAP_TYPE_PERCPU_HASH,
            bpf_map_type::BPF_MAP_TYPE_LRU_PERCPU_HASH,
        ];
        let is_of_cpus = kinds.iter().any(|kind| *kind as u32 == info.type_);
        let values = if is_of_cpus { Some(nr_cpus().map_err(|(_, error)| error)?) } else { None };
        Ok(Self { fd, info, values })
    }

    fn raw_fd(&self) -> u32 {
        self.fd.as_raw_fd() as u32
    }

    /// Opens a pinned map; nothing if there is none.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(in crate::kernel) fn open_if_there(pin: &Path) -> io::Result<Option<Self>> {
        match Self::open(pin) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    pub(in crate::kernel) fn key_size(&self) -> usize {
        self.info.key_size as usize
    }

    pub(in crate::kernel) fn value_size(&self) -> usize {
        self.info.value_size as usize
    }

    /// Rows it has room for.
    pub(in crate::kernel) fn capacity(&self) -> u32 {
        self.info.max_entries
    }

    /// Ids of its BTF, and in there of the types of key and value.
    pub(in crate::kernel) fn btf(&self) -> (u32, u32, u32) {
        (self.info.btf_id, self.info.btf_key_type_id, self.info.btf_value_type_id)
    }

    /// Its keys are indexes.
    pub(in crate::kernel) fn is_array(&self) -> bool {
        let kinds = [bpf_map_type::BPF_MAP_TYPE_ARRAY, bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY];
        kinds.iter().any(|kind| *kind as u32 == self.info.type_)
    }

    /// Values in a row: one for each possible CPU, or one. Each is padded to eight bytes in the first case.
    pub(in crate::kernel) fn values(&self) -> Option<usize> {
        self.values
    }

    /// Bytes that a lookup fills.
    fn stride(&self) -> usize {
        let size = self.value_size();
        self.values.map_or(size, |cpus| size.next_multiple_of(8) * cpus)
    }

    /// Calls `row` for every row. Rows that come and go meanwhile may be seen or not, and some twice.
    ///
    /// # Errors
    /// When the kernel or `row` refuses.
    pub(in crate::kernel) fn each(
        &self,
        mut row: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (key_size, stride) = (self.key_size(), self.stride());
        // Of a hash the token is the number of a bucket, else a key.
        let mut tokens = [vec![0u8; key_size.max(8)], vec![0u8; key_size.max(8)]];
        let (mut room, mut begun) = (BATCH, false);
        loop {
            let (mut keys, mut values) = (vec![0u8; room * key_size], vec![0u8; room * stride]);
            let [last_token, next_token] = &mut tokens;
            let mut attr = zeroed_attr();
            attr.batch.map_fd = self.raw_fd();
            attr.batch.in_batch = if begun { last_token.as_ptr() as u64 } else { 0 };
            attr.batch.out_batch = next_token.as_mut_ptr() as u64;
            attr.batch.keys = keys.as_mut_ptr() as u64;
            attr.batch.values = values.as_mut_ptr() as u64;
            attr.batch.count = room as u32;
            let result = bpf(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr);
            // SAFETY: the batch member was the one used; the kernel left the count of rows there.
            let count = (unsafe { attr.batch.count } as usize).min(room);
            let last = match result.map_err(|error| (error.raw_os_error(), error)) {
                Ok(_) => false,
                Err((Some(libc::ENOENT), _)) => true,
                // One hash bucket holds more rows than there is room for.
                Err((Some(libc::ENOSPC), _)) => {
                    room *= 2;
                    continue;
                }
                Err((Some(ENOTSUPP | libc::EOPNOTSUPP), _)) if !begun => return self.each_by_key(row),
                Err((_, error)) => return Err(error),
            };
            let rows = keys.chunks_exact(key_size).zip(values.chunks_exact(stride)).take(count);
            for (key, value) in rows {
                row(key, value)?;
            }
            if last {
                return Ok(());
            }
            tokens.swap(0, 1);
            begun = true;
        }
    }

    /// Without batches, which not every kind of map has on every kernel.
    fn each_by_key(&self, mut row: impl FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut keys = Vec::new();
        let mut last: Option<Vec<u8>> = None;
        loop {
            let mut next = vec![0u8; self.key_size()];
            let mut attr = zeroed_attr();
            attr.__bindgen_anon_2.map_fd = self.raw_fd();
            attr.__bindgen_anon_2.key = last.as_ref().map_or(0, |key| key.as_ptr() as u64);
            attr.__bindgen_anon_2.__bindgen_anon_1.next_key = next.as_mut_ptr() as u64;
            match bpf(bpf_cmd::BPF_MAP_GET_NEXT_KEY, &mut attr) {
                Ok(_) => {
                    keys.push(next.clone());
                    last = Some(next);
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
                Err(error) => return Err(error),
            }
        }
        for key in keys {
            if let Some(value) = self.get(&key)? {
                row(&key, &value)?;
            }
        }
        Ok(())
    }

    /// The value of a key, if there is one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(in crate::kernel) fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.lookup(bpf_cmd::BPF_MAP_LOOKUP_ELEM, key)
    }

    /// Removes a row and returns its value as it was at that moment.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(in crate::kernel) fn take(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.lookup(bpf_cmd::BPF_MAP_LOOKUP_AND_DELETE_ELEM, key)
    }

    fn lookup(&self, command: bpf_cmd, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.check(key.len() == self.key_size())?;
        let mut value = vec![0u8; self.stride()];
        let mut attr = zeroed_attr();
        attr.__bindgen_anon_2.map_fd = self.raw_fd();
        attr.__bindgen_anon_2.key = key.as_ptr() as u64;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
        match bpf(command, &mut attr) {
            Ok(_) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a row. `flags` are `BPF_ANY`, `BPF_NOEXIST` or `BPF_EXIST`.
    ///
    /// # Errors
    /// When the kernel refuses, for one because the row is there or is not.
    pub(in crate::kernel) fn put(&self, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
        self.check(key.len() == self.key_size() && value.len() == self.stride())?;
        let mut attr = zeroed_attr();
        attr.__bindgen_anon_2.map_fd = self.raw_fd();
        attr.__bindgen_anon_2.key = key.as_ptr() as u64;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_ptr() as u64;
        attr.__bindgen_anon_2.flags = flags;
        bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr).map(drop)
    }

    /// Deletes rows, one after the other; those that are gone already are fine.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(in crate::kernel) fn delete(&self, keys: &[Vec<u8>]) -> io::Result<()> {
        for key in keys {
            self.check(key.len() == self.key_size())?;
            let mut attr = zeroed_attr();
            attr.__bindgen_anon_2.map_fd = self.raw_fd();
            attr.__bindgen_anon_2.key = key.as_ptr() as u64;
            match bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &mut attr) {
                Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn check(&self, fits: bool) -> io::Result<()> {
        let error = || io::Error::new(io::ErrorKind::InvalidInput, "the row has another size");
        if fits { Ok(()) } else { Err(error()) }
    }

    /// Rows in use: of an array, those up to the last that is not empty.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(in crate::kernel) fn used(&self) -> io::Result<u32> {
        let mut used = 0;
        self.each(|key, value| {
            match key.try_into().map(u32::from_ne_bytes) {
                Ok(index) if self.is_array() => {
                    if value.iter().any(|byte| *byte != 0) {
                        used = used.max(index.saturating_add(1));
                    }
                }
                _ => used += 1,
            }
            Ok(())
        })?;
        Ok(used)
    }

    /// The type information the map was made with. The kernel shows it to `CAP_SYS_ADMIN` only.
    ///
    /// # Errors
    /// When it has none, or the kernel refuses.
    pub(in crate::kernel) fn btf_bytes(&self) -> io::Result<Vec<u8>> {
        let mut attr = zeroed_attr();
        attr.__bindgen_anon_6.__bindgen_anon_1.btf_id = self.info.btf_id;
        let fd = bpf(bpf_cmd::BPF_BTF_GET_FD_BY_ID, &mut attr).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                io::Error::new(error.kind(), "it takes CAP_SYS_ADMIN to read the types of its rows")
            }
            _ => error,
        })?;
        let fd = super::link::owned(fd)?;
        let fd = fd.as_fd();
        // SAFETY: plain integers.
        let mut info: aya_obj::generated::bpf_btf_info = unsafe { std::mem::zeroed() };
        info_of(fd, &mut info)?;
        let mut bytes = vec![0u8; info.btf_size as usize];
        // SAFETY: plain integers; now with room for the bytes.
        info = unsafe { std::mem::zeroed() };
        (info.btf, info.btf_size) = (bytes.as_mut_ptr() as u64, bytes.len() as u32);
        info_of(fd, &mut info)?;
        Ok(bytes)
    }
}
