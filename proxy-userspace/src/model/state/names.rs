//! Names that many objects share, such as those of nodes and zones: kept once, as long as
//! anything has them.

use std::{collections::HashMap, num::NonZeroU32, sync::Arc};

/// Stands for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) struct NameId(NonZeroU32);

/// Names in use.
#[derive(Debug, Default)]
pub(in crate::model) struct Names {
    ids: HashMap<Arc<str>, NameId>,
    /// By id, from 1: the name and how often it is used.
    entries: Vec<(Arc<str>, usize)>,
    unused: Vec<NameId>,
}

impl NameId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl Names {
    /// The id of a name, with one use more.
    pub(super) fn acquire(&mut self, name: &Arc<str>) -> NameId {
        if let Some(id) = self.ids.get(name) {
            self.entries[id.index()].1 += 1;
            return *id;
        }
        let entry = (name.clone(), 1);
        let id = match self.unused.pop() {
            Some(id) => {
                self.entries[id.index()] = entry;
                id
            }
            None => {
                self.entries.push(entry);
                let count = u32::try_from(self.entries.len()).ok().and_then(NonZeroU32::new);
                NameId(count.expect("there is no memory for so many names"))
            }
        };
        self.ids.insert(name.clone(), id);
        id
    }

    /// One use less.
    pub(super) fn release(&mut self, id: NameId) {
        let Some((name, uses)) = self.entries.get_mut(id.index()) else { return };
        *uses = uses.saturating_sub(1);
        if *uses == 0 {
            self.ids.remove(name);
            *name = Arc::default();
            self.unused.push(id);
        }
    }

    /// The id of a name that is in use.
    pub(super) fn find(&self, name: &str) -> Option<NameId> {
        self.ids.get(name).copied()
    }

    /// The name of an id.
    pub(super) fn get(&self, id: NameId) -> Option<&Arc<str>> {
        self.entries.get(id.index()).map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_lives_as_long_as_it_is_used() {
        let mut names = Names::default();
        let first = names.acquire(&"a".into());
        assert_eq!(names.acquire(&"a".into()), first);
        let other = names.acquire(&"b".into());
        names.release(first);
        assert_eq!(names.find("a"), Some(first));
        names.release(first);
        assert_eq!((names.find("a"), names.find("b")), (None, Some(other)));
        assert_eq!(names.acquire(&"c".into()), first, "ids are used again");
        assert_eq!(names.get(first).map(|name| &**name), Some("c"));
    }
}
