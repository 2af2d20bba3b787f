//! Finds and reads the case files.

use super::case::Case;
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A case and the file it comes from.
#[derive(Debug)]
pub struct Named {
    /// Name of the file without its extension.
    pub topic: String,
    /// Its path.
    pub file: PathBuf,
    /// The case.
    pub case: Case,
}

/// Reads the case files of folders, or single files, in the order of their names.
pub fn load(paths: &[PathBuf]) -> Result<Vec<Named>> {
    let mut cases = Vec::new();
    for path in paths {
        let mut files = if path.is_dir() { files(path)? } else { vec![path.clone()] };
        files.sort();
        ensure!(!files.is_empty(), "{}: no case files", path.display());
        for file in files {
            let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            let read: Vec<Case> =
                serde_norway::from_str(&text).with_context(|| file.display().to_string())?;
            let topic = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            cases.extend(read.into_iter().map(|case| Named {
                topic: topic.clone(),
                file: file.clone(),
                case,
            }));
        }
    }
    Ok(cases)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cases_of_the_project_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
        let cases = load(&[folder]).expect("cases");
        assert!(cases.len() > 150, "{}", cases.len());
        assert!(cases.iter().any(|named| named.topic == "hairpin"));
    }
}
