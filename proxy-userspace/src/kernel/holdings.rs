//! What the kernel holds on behalf of the pins below a directory: their maps, and every program
//! that uses one of them, attached or not. By ids, which the kernel does not give again.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use aya::{maps::MapInfo, programs::loaded_programs};

use super::bpf::{self, ObjectKind};

/// The kernel frees what nobody uses any more after all processors have let go of it.
const RELEASED: Duration = Duration::from_secs(30);

/// Maps and programs, by id with their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Maps that are pinned.
    pub maps: BTreeMap<u32, String>,
    /// Programs that use one.
    pub programs: BTreeMap<u32, String>,
}

impl Holdings {
    /// What is there now.
    pub fn below(root: &Path) -> Self {
        let maps: BTreeMap<u32, String> = files(root)
            .iter()
            .filter_map(|path| {
                let info = MapInfo::from_pin(path).ok()?;
                Some((info.id(), path.file_name()?.to_string_lossy().into_owned()))
            })
            .collect();
        let mut programs = BTreeMap::new();
        for program in loaded_programs().flatten() {
            let uses = program.map_ids().ok().flatten().unwrap_or_default();
            if uses.iter().any(|id| maps.contains_key(id)) {
                programs.insert(program.id(), program.name_as_str().unwrap_or_default().to_owned());
            }
        }
        Self { maps, programs }
    }

    /// True if there is nothing.
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty() && self.programs.is_empty()
    }

    /// Waits until the kernel has freed them, and returns those that it has not: some process
    /// holds them.
    pub fn wait_released(mut self) -> Self {
        let deadline = Instant::now() + RELEASED;
        // What cannot be told is taken for there.
        let exists = |kind, id: &u32| bpf::exists(kind, *id).unwrap_or(true);
        loop {
            self.maps.retain(|id, _| exists(ObjectKind::Map, id));
            self.programs.retain(|id, _| exists(ObjectKind::Program, id));
            if self.is_empty() || Instant::now() > deadline {
                return self;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// All files below a directory, without following links.
fn files(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}
