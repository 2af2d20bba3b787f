//! Parts of an object that make no sense count for nothing, and the rest is taken: an address that nobody can use must not
//! keep endpoints that are long gone.

use super::Rejected;

/// What of an object counts for nothing.
#[derive(Debug, Default)]
pub struct Ignored(Vec<Rejected>);

impl Ignored {
    /// The part, if it makes sense.
    pub(super) fn keep<T>(&mut self, part: Result<T, Rejected>) -> Option<T> {
        part.map_err(|reason| self.0.push(reason)).ok()
    }

    /// The parts that make sense.
    pub(super) fn keep_all<T, L: FromIterator<T>>(
        &mut self,
        parts: impl Iterator<Item = Result<T, Rejected>>,
    ) -> L {
        parts.filter_map(|part| self.keep(part)).collect()
    }

    /// The parts that make sense, of a list without which the object means something else.
    ///
    /// # Errors
    /// Why the first part makes no sense, if none does.
    pub(super) fn keep_some<T>(
        &mut self,
        parts: impl Iterator<Item = Result<T, Rejected>>,
    ) -> Result<Box<[T]>, Rejected> {
        let mut ignored = Self::default();
        let kept: Box<[T]> = ignored.keep_all(parts);
        let mut reasons = ignored.0.into_iter();
        match reasons.next() {
            Some(reason) if kept.is_empty() => return Err(reason),
            first => self.0.extend(first.into_iter().chain(reasons)),
        }
        Ok(kept)
    }

    /// Why they do not.
    pub fn into_reasons(self) -> Vec<Rejected> {
        self.0
    }
}
