//! Which parts of a measurement are finished, as a file: a measurement that is cut off goes on there.

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// Of one measurement.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    content: Content,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Content {
    /// With which it was begun.
    options: String,
    finished: BTreeSet<String>,
    /// Data of API servers that was written for it.
    data: BTreeSet<PathBuf>,
}

impl Journal {
    /// The one that was left there, to go on with; or a new one, for which the data that was left is
    /// removed.
    ///
    /// # Errors
    /// When there is none to go on with, or one with other options.
    pub fn open(path: &Path, options: &str, resume: bool) -> Result<Self> {
        let left = match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => {
                let text = text.with_context(|| format!("read {}", path.display()))?;
                Some(serde_json::from_slice::<Content>(&text).with_context(|| {
                    format!("{} is not what this version writes: remove it", path.display())
                })?)
            }
        };
        let content = match (left, resume) {
            (None, true) => bail!("--resume: no measurement was cut off"),
            (Some(left), true) => {
                let begun = &left.options;
                ensure!(
                    begun == options,
                    "--resume: it was begun with other options:\n{begun}\nnow:\n{options}"
                );
                left
            }
            (left, false) => {
                let left = left.unwrap_or_default();
                Self { path: path.to_owned(), content: left }.remove_data()?;
                Content { options: options.to_owned(), ..Content::default() }
            }
        };
        let journal = Self { path: path.to_owned(), content };
        journal.write()?;
        Ok(journal)
    }

    /// Whether this part is finished.
    pub fn has(&self, part: &str) -> bool {
        self.content.finished.contains(part)
    }

    /// Notes that this part is, and its results written.
    pub fn finish(&mut self, part: &str) -> Result<()> {
        self.content.finished.insert(part.to_owned());
        self.write()
    }

    /// Notes data before it is written.
    pub fn owns(&mut self, data: &Path) -> Result<()> {
        self.content.data.insert(data.to_owned());
        self.write()
    }

    /// Removes what it has noted of data.
    pub(super) fn remove_data(&self) -> Result<()> {
        for data in &self.content.data {
            match fs::remove_dir_all(data) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("remove {}", data.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Everything is finished.
    pub(super) fn close(self) -> Result<()> {
        fs::remove_file(&self.path).with_context(|| format!("remove {}", self.path.display()))
    }

    /// Beside its place first: one that is cut off here leaves what was there.
    fn write(&self) -> Result<()> {
        let draft = self.path.with_extension("draft");
        fs::write(&draft, serde_json::to_string_pretty(&self.content)?)
            .and_then(|()| fs::rename(&draft, &self.path))
            .with_context(|| format!("write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_off_goes_on() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let (path, data) = (folder.path().join("bench-x.json"), folder.path().join("data"));
        fs::create_dir(&data)?;
        let open = |options, resume| Journal::open(&path, options, resume);
        assert!(format!("{:#}", open("a", true).unwrap_err()).contains("no measurement was cut off"));
        let mut journal = open("a", false)?;
        journal.finish("10")?;
        journal.owns(&data)?;
        drop(journal);
        assert!(format!("{:#}", open("b", true).unwrap_err()).contains("other options"));
        let journal = open("a", true)?;
        assert!(journal.has("10") && !journal.has("1000") && data.exists());
        drop(journal);
        // Whoever begins anew has no use for what the other left.
        assert!(!open("b", false)?.has("10") && !data.exists());
        open("b", true)?.close()?;
        assert!(!path.exists());
        Ok(())
    }
}
