//! What becomes of every field, in one table: the log, `shunt config check` and
//! `docs/configuration.md` all tell it from here.

mod ours;
mod theirs;

pub use self::{ours::SHUNT, theirs::KUBE_PROXY};

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It does what it does in kube-proxy.
    Honoured,
    /// It has a meaning here, which is not quite that of kube-proxy.
    Mapped,
    /// There is nothing here for it to change.
    Unused,
}

impl Fate {
    /// The word for it in documents.
    pub fn name(self) -> &'static str {
        match self {
            Fate::Honoured => "honoured",
            Fate::Mapped => "mapped",
            Fate::Unused => "no effect",
        }
    }
}

/// When a change of a field in the file takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// At once.
    Live,
    /// When the agent is started the next time.
    Restart,
    /// Never: the field has no effect.
    Nothing,
}

impl Takes {
    /// The word for it in documents.
    pub fn name(self) -> &'static str {
        match self {
            Takes::Live => "at once",
            Takes::Restart => "next start",
            Takes::Nothing => "",
        }
    }
}

/// A field of a document.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// As it is written: `conntrack.min`.
    pub path: &'static str,
    /// What becomes of it.
    pub fate: Fate,
    /// When a change takes effect.
    pub takes: Takes,
    /// What it means here, in words.
    pub meaning: &'static str,
}

/// The field of that path, or the one whose items the path leads to.
pub fn find(table: &'static [Field], path: &str) -> Option<&'static Field> {
    table.iter().find(|field| {
        path.strip_prefix(field.path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

const fn honoured(path: &'static str, takes: Takes, meaning: &'static str) -> Field {
    Field { path, fate: Fate::Honoured, takes, meaning }
}

const fn mapped(path: &'static str, takes: Takes, meaning: &'static str) -> Field {
    Field { path, fate: Fate::Mapped, takes, meaning }
}

const fn unused(path: &'static str, meaning: &'static str) -> Field {
    Field { path, fate: Fate::Unused, takes: Takes::Nothing, meaning }
}
