//! The network namespaces of this machine, as far as the agent can see them: those of
//! processes, and those that are mounted somewhere, which is how container runtimes
//! keep the ones of pods. Needs the host's process ids to see all.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread,
};

use nix::sched::{CloneFlags, setns};

use super::{KernelError, bpf};

/// `bpf_get_netns_cookie` of the network namespace of this thread.
///
/// # Errors
/// When the kernel does not tell.
pub fn netns_cookie() -> Result<u64, KernelError> {
    bpf::netns_cookie().map_err(|source| KernelError::System {
        what: "ask for the cookie of the network namespace".into(),
        source,
    })
}

/// Every network namespace: its identity, as the links of processes spell it, and a file
/// by which it can be entered.
pub(super) fn all() -> io::Result<BTreeMap<PathBuf, PathBuf>> {
    let mut found = BTreeMap::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let path = process.path().join("ns/net");
        // Whatever is no process, or has ended meanwhile, has no such link.
        if let Ok(id) = fs::read_link(&path) {
            found.entry(id).or_insert(path);
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    found.extend(mounts.lines().filter_map(mounted));
    Ok(found)
}

/// The namespace that a line of `mountinfo` (proc(5)) is about: identity and mount point.
fn mounted(line: &str) -> Option<(PathBuf, PathBuf)> {
    let mut fields = line.split(' ').skip(3);
    let (id, path) = (fields.next()?, fields.next()?);
    id.starts_with("net:[").then(|| (id.into(), path.into()))
}

/// The identity of the one this thread is in.
pub(super) fn own() -> io::Result<PathBuf> {
    fs::read_link("/proc/thread-self/ns/net")
}

/// Runs `work` in a network namespace, on a thread that ends with it. Takes `CAP_SYS_ADMIN`.
pub(super) fn inside<T: Send>(
    namespace: &Path,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let file = File::open(namespace)?;
    let enter_and_work = || {
        setns(&file, CloneFlags::CLONE_NEWNET)?;
        work()
    };
    let panicked = |_| Err(io::Error::other("a thread in a network namespace panicked"));
    thread::scope(|scope| scope.spawn(enter_and_work).join().unwrap_or_else(panicked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounted_namespaces_are_found() {
        let line = "713 27 0:4 net:[4026532456] /run/netns/a rw shared:348 - nsfs nsfs rw";
        assert_eq!(mounted(line), Some(("net:[4026532456]".into(), "/run/netns/a".into())));
        assert_eq!(mounted("27 1 254:0 / / rw,relatime - ext4 /dev/vda rw"), None);
        assert_eq!(mounted(""), None);
    }

    #[test]
    fn the_own_namespace_is_among_all() {
        let own = own().expect("own");
        assert!(all().expect("namespaces").contains_key(&own));
    }
}
