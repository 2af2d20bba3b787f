//! Where kernel objects are pinned, so that they outlive the agent.
//!
//! The maps of one shape and the links of the programs that use them are a *generation*, in a
//! directory of its own. The symbolic link `current` names the one in service; there are others
//! only while one hands over to the next.
//!
//! ```text
//! <root>/current -> g3-v2
//! <root>/g3-v2/maps/frontends_v4 …
//! <root>/g3-v2/links/tcx-ingress-2 …
//! <root>/g3-v2/fields/frontends_v4 -> addr.octets@0+4b,port@4+2,…
//! ```

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use proxy_common::maps::LAYOUT_VERSION;

use super::error::KernelError;

/// Directory of all pins unless the operator names another.
pub const DEFAULT_BPFFS: &str = "/sys/fs/bpf/shunt";

/// Names the generation in service.
pub(super) const CURRENT: &str = "current";
/// Directory of pinned links.
pub(super) const LINKS: &str = "links";
const MAPS: &str = "maps";
const FIELDS: &str = "fields";

/// The pins of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    root: PathBuf,
    generation: Generation,
}

/// One set of maps and links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Generation {
    /// As agents before the first with generations left it: `v1/maps`, and `links` beside it.
    Unnumbered {
        /// `LAYOUT_VERSION` of its rows.
        layout: u32,
    },
    /// A directory named by both numbers, `g3-v2`.
    Numbered {
        /// Counts up, so that a later one has a higher number.
        number: u32,
        /// `LAYOUT_VERSION` of its rows.
        layout: u32,
    },
    /// Whichever is in service.
    Current,
}

impl Generation {
    /// What a directory of this name holds.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let layout = |text: &str| text.strip_prefix('v')?.parse().ok();
        match name.strip_prefix('g') {
            Some(rest) => {
                let (number, rest) = rest.split_once('-')?;
                Some(Self::Numbered { number: number.parse().ok()?, layout: layout(rest)? })
            }
            None => Some(Self::Unnumbered { layout: layout(name)? }),
        }
    }

    /// Name of its directory.
    pub(super) fn directory(self) -> String {
        match self {
            Self::Unnumbered { layout } => format!("v{layout}"),
            Self::Numbered { number, layout } => format!("g{number}-v{layout}"),
            Self::Current => CURRENT.to_owned(),
        }
    }

    /// Where it comes in the order of generations.
    pub(super) fn number(self) -> u32 {
        if let Self::Numbered { number, .. } = self { number } else { 0 }
    }

    /// The layout of its rows, if the name tells.
    pub(super) fn layout(self) -> Option<u32> {
        match self {
            Self::Unnumbered { layout } | Self::Numbered { layout, .. } => Some(layout),
            Self::Current => None,
        }
    }
}

impl Pins {
    /// The pins of the generation in service below `root`, whichever that is at the time of each
    /// use; touches nothing.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self::of(root, Generation::Current)
    }

    /// The pins of one generation.
    pub(super) fn of(root: impl Into<PathBuf>, generation: Generation) -> Self {
        Self { root: root.into(), generation }
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// The directory the operator gave.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// There is such a generation.
    pub(super) fn exists(&self) -> bool {
        self.maps_dir().exists()
    }

    /// Makes the directories.
    ///
    /// # Errors
    /// When one cannot be made.
    pub(super) fn create(&self) -> Result<(), KernelError> {
        for path in [self.maps_dir(), self.links_dir(), self.fields_dir()] {
            fs::create_dir_all(&path).map_err(failed("cannot create", &path))?;
        }
        Ok(())
    }

    /// Pin of the map called `name`.
    pub fn map(&self, name: &str) -> PathBuf {
        self.maps_dir().join(name)
    }

    /// Where the fields of the map called `name` are noted.
    pub(super) fn fields(&self, name: &str) -> PathBuf {
        self.fields_dir().join(name)
    }

    /// Pin of the link called `name`.
    pub fn link(&self, name: &str) -> PathBuf {
        self.links_dir().join(name)
    }

    /// The names of all pinned links.
    ///
    /// # Errors
    /// When the directory exists and cannot be read.
    pub fn links(&self) -> io::Result<Vec<String>> {
        match fs::read_dir(self.links_dir()) {
            Ok(entries) => entries.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned())).collect(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Tells maps of another version from maps that can be read.
    ///
    /// # Errors
    /// When they are such.
    pub(super) fn check_layout(&self) -> Result<(), KernelError> {
        let layout = match self.generation {
            Generation::Current => {
                let target = fs::read_link(self.root.join(CURRENT)).ok();
                target.and_then(|target| Generation::parse(target.to_str()?)).and_then(Generation::layout)
            }
            generation => generation.layout(),
        };
        match layout {
            Some(found) if found != LAYOUT_VERSION => {
                Err(KernelError::OtherLayout { path: self.maps_dir(), found, wanted: LAYOUT_VERSION })
            }
            _ => Ok(()),
        }
    }

    /// Removes the generation: first its links, so that no program is left without its maps.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub(super) fn remove(&self) -> Result<(), KernelError> {
        for path in [self.links_dir(), self.root.join(self.generation.directory())] {
            remove(&path)?;
        }
        Ok(())
    }

    fn maps_dir(&self) -> PathBuf {
        self.root.join(self.generation.directory()).join(MAPS)
    }

    fn fields_dir(&self) -> PathBuf {
        self.root.join(self.generation.directory()).join(FIELDS)
    }

    fn links_dir(&self) -> PathBuf {
        match self.generation {
            Generation::Unnumbered { .. } => self.root.join(LINKS),
            generation => self.root.join(generation.directory()).join(LINKS),
        }
    }
}

/// Removes what is at `path`; nothing there is fine.
pub(super) fn remove(path: &Path) -> Result<(), KernelError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(failed("cannot remove", path)),
    }
}

pub(super) fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KernelError {
    let path = path.to_owned();
    move |source| KernelError::File { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_says_what_it_holds() {
        for (name, number, layout) in [("v1", 0, 1), ("g1-v1", 1, 1), ("g12-v3", 12, 3)] {
            let generation = Generation::parse(name).expect("a generation");
            assert_eq!((generation.number(), generation.layout()), (number, Some(layout)));
            assert_eq!(generation.directory(), name);
        }
        for name in ["links", "current", "g1", "g1-2", "gx-v1", "v", "vpn", "g-v1", ""] {
            assert_eq!(Generation::parse(name), None, "{name}");
        }
    }
}
