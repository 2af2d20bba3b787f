//! The generations below the agent's directory: which is in service, which are left of a
//! handover that was cut short, and what the next is called.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use proxy_common::maps::LAYOUT_VERSION;

use super::{
    error::KernelError,
    pins::{self, CURRENT, Generation, LINKS, Pins, failed},
};

/// What `current` is called until it takes the place of the one before.
const NEXT: &str = "next";

/// The agent's directory on the BPF file system.
#[derive(Clone, Debug)]
pub(super) struct Generations {
    root: PathBuf,
}

impl Generations {
    /// The generations below `root`; touches nothing.
    pub(super) fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Makes the directory.
    ///
    /// # Errors
    /// When it is not on a BPF file system or cannot be made.
    pub(super) fn create(root: impl Into<PathBuf>) -> Result<Self, KernelError> {
        let generations = Self::below(root);
        let root = &generations.root;
        let existing = root.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
        let on_bpffs = statfs(existing).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC);
        if !on_bpffs {
            return Err(KernelError::NotBpffs { path: existing.to_owned() });
        }
        fs::create_dir_all(root).map_err(failed("cannot create", root))?;
        Ok(generations)
    }

    /// All of them, oldest first.
    ///
    /// # Errors
    /// When the directory exists and cannot be read.
    pub(super) fn all(&self) -> Result<Vec<Pins>, KernelError> {
        let mut found: Vec<_> = self.names()?.iter().filter_map(|name| Generation::parse(name)).collect();
        found.sort_unstable();
        Ok(found.into_iter().map(|generation| self.pins(generation)).collect())
    }

    /// The one in service. Before there were generations nothing named it.
    ///
    /// # Errors
    /// When the directory exists and cannot be read.
    pub(super) fn current(&self) -> Result<Option<Pins>, KernelError> {
        let target = fs::read_link(self.root.join(CURRENT)).ok();
        let named = target.and_then(|target| Generation::parse(target.to_str()?)).map(|g| self.pins(g));
        let unnumbered = |pins: &Pins| pins.generation().number() == 0;
        Ok(match named {
            Some(pins) => Some(pins),
            None => self.all()?.into_iter().rfind(unnumbered),
        })
    }

    /// A new one of this agent's layout, with nothing in it.
    ///
    /// # Errors
    /// When its directories cannot be made.
    pub(super) fn begin(&self) -> Result<Pins, KernelError> {
        let last = self.all()?.last().map_or(0, |pins| pins.generation().number());
        let pins = self.pins(Generation::Numbered { number: last + 1, layout: LAYOUT_VERSION });
        pins.create()?;
        Ok(pins)
    }

    /// Puts `pins` into service, in one step: readers find the one or the other.
    ///
    /// # Errors
    /// When the link cannot be made.
    pub(super) fn switch(&self, pins: &Pins) -> Result<(), KernelError> {
        let (next, current) = (self.root.join(NEXT), self.root.join(CURRENT));
        if pins.generation().number() == 0 {
            return pins::remove(&current);
        }
        pins::remove(&next)?;
        symlink(pins.generation().directory(), &next).map_err(failed("cannot create", &next))?;
        fs::rename(&next, &current).map_err(failed("cannot replace", &current))
    }

    /// Removes what never came into service: no program of it was ever attached.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub(super) fn discard_unfinished(&self) -> Result<(), KernelError> {
        let current = self.current()?.map_or(0, |pins| pins.generation().number());
        let mut later = self.all()?;
        later.retain(|pins| pins.generation().number() > current);
        later.iter().try_for_each(Pins::remove)
    }

    /// Removes all pins, of every generation, and nothing else. False if there were none.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub(super) fn remove(&self) -> Result<bool, KernelError> {
        let generations = self.all()?;
        let mut removed = !generations.is_empty();
        generations.iter().try_for_each(Pins::remove)?;
        for name in [CURRENT, NEXT, LINKS] {
            let path = self.root.join(name);
            removed |= fs::symlink_metadata(&path).is_ok();
            pins::remove(&path)?;
        }
        // It stays where it is a mount point or holds the pins of others.
        let _ = fs::remove_dir(&self.root);
        Ok(removed)
    }

    fn pins(&self, generation: Generation) -> Pins {
        Pins::of(&self.root, generation)
    }

    fn names(&self) -> Result<Vec<String>, KernelError> {
        match fs::read_dir(&self.root) {
            Ok(entries) => {
                Ok(entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(failed("cannot read", &self.root)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On any file system: only `create` asks for a BPF one.
    #[test]
    fn generations_come_and_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let generations = Generations::below(dir.path().join("shunt"));
        assert_eq!(generations.current().expect("read"), None);
        assert!(!generations.remove().expect("nothing to remove"));

        let first = generations.begin().expect("made");
        assert_eq!(first.generation().number(), 1);
        generations.discard_unfinished().expect("removed");
        assert_eq!(generations.all().expect("read"), []);

        let first = generations.begin().expect("made");
        generations.switch(&first).expect("in service");
        let second = generations.begin().expect("made");
        assert_eq!(generations.current().expect("read"), Some(first.clone()));
        generations.switch(&second).expect("in service");
        assert_eq!(generations.current().expect("read"), Some(second.clone()));
        generations.discard_unfinished().expect("nothing to remove");
        assert_eq!(generations.all().expect("read"), [first.clone(), second]);
        assert!(Pins::new(dir.path().join("shunt")).map("x").parent().is_some_and(Path::is_dir));

        first.remove().expect("removed");
        assert!(generations.remove().expect("removed"));
        assert!(!dir.path().join("shunt").exists());
    }

    #[test]
    fn what_agents_before_generations_left_is_in_service() {
        let dir = tempfile::tempdir().expect("a directory");
        for sub in ["v1/maps", "links", "foreign"] {
            fs::create_dir_all(dir.path().join(sub)).expect("a directory");
        }
        let generations = Generations::below(dir.path());
        let old = generations.current().expect("read").expect("one");
        assert_eq!(old.link("x"), dir.path().join("links/x"));
        let new = generations.begin().expect("made");
        assert_eq!(new.generation().number(), 1);
        generations.switch(&new).expect("in service");
        generations.switch(&old).expect("back again");
        assert_eq!(generations.current().expect("read"), Some(old));
        assert!(generations.remove().expect("removed"));
        assert_eq!(generations.names().expect("read"), ["foreign"]);
    }
}
