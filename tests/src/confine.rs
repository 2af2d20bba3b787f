//! A process with no more rights than its manifest gives to a container, or its unit to a service.
//!
//! What a container runtime would do is done here to a plain process: the capabilities that
//! are not added are gone for good, `/proc/sys` and `/sys` are read-only as in every container
//! that is not privileged, and so is all the rest where the root file system is to be.

use anyhow::{Context, Result, bail};
use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};
use serde_json::Value;
use std::{
    ffi::CString,
    fs, io,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

/// capabilities(7) that manifests of ours may name, with their numbers.
const CAPABILITIES: [(&str, u32); 9] = [
    ("DAC_READ_SEARCH", 2),
    ("NET_BIND_SERVICE", 10),
    ("NET_ADMIN", 12),
    ("NET_RAW", 13),
    ("SYS_PTRACE", 19),
    ("SYS_ADMIN", 21),
    ("SYS_RESOURCE", 24),
    ("PERFMON", 38),
    ("BPF", 39),
];

/// The `oom_score_adj` that kubelet gives to containers of node-critical pods.
const NODE_CRITICAL: &str = "-997";

/// The kernel has no capability beyond this number.
const LAST_CAPABILITY: u32 = 63;

/// The rights of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Numbers of the capabilities it has.
    capabilities: Vec<u32>,
    read_only_root: bool,
    no_new_privileges: bool,
    /// The network namespaces that are mounted on the host are, too.
    sees_namespaces: bool,
}

/// Where the network namespaces of pods are mounted.
const NAMESPACES: &str = "/run/netns";

impl Confinement {
    /// The rights that the first container of a DaemonSet's pods has; none are taken from one that
    /// is privileged.
    ///
    /// # Errors
    /// When not all capabilities are dropped first, or one is unknown here.
    pub fn of(daemon_set: &Value) -> Result<Option<Self>> {
        let container = &daemon_set["spec"]["template"]["spec"]["containers"][0];
        let context = &container["securityContext"];
        if context["privileged"] == true {
            return Ok(None);
        }
        let dropped = context["capabilities"]["drop"].as_array();
        if !dropped.is_some_and(|dropped| dropped.iter().any(|name| name == "ALL")) {
            bail!("what a runtime grants by default is not known here; drop ALL in {context}");
        }
        let added = context["capabilities"]["add"].as_array().into_iter().flatten();
        let mounts = container["volumeMounts"].as_array().into_iter().flatten();
        Ok(Some(Self {
            capabilities: numbers(added.map(|name| name.as_str().unwrap_or_default()))?,
            read_only_root: context["readOnlyRootFilesystem"] == true,
            no_new_privileges: context["allowPrivilegeEscalation"] == false,
            sees_namespaces: mounts.into_iter().any(|mount| mount["mountPath"] == NAMESPACES),
        }))
    }

    /// The rights that a unit of systemd gives to its service, as far as they are about
    /// capabilities and files.
    ///
    /// # Errors
    /// When it has no set of capabilities, or one is unknown here.
    pub fn of_unit(text: &str) -> Result<Self> {
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let set = value("CapabilityBoundingSet").context("no CapabilityBoundingSet")?;
        let names = set.split_whitespace().map(|name| name.trim_start_matches("CAP_"));
        Ok(Self {
            capabilities: numbers(names)?,
            read_only_root: value("ProtectSystem") == Some("strict"),
            no_new_privileges: value("NoNewPrivileges") == Some("yes"),
            sees_namespaces: false,
        })
    }

    /// Whether it has a capability.
    pub fn has(&self, name: &str) -> bool {
        numbers([name].into_iter()).is_ok_and(|numbers| self.capabilities.contains(&numbers[0]))
    }

    /// Confines `command`, which may write below `writable` only. Comes after whatever needs
    /// rights itself, such as entering a namespace.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    pub fn confine<'a>(&self, command: &'a mut Command, writable: &Path) -> Result<&'a mut Command> {
        let mounts = Mounts::plan(writable, self)?;
        let Self { capabilities, no_new_privileges, .. } = self.clone();
        let confine = move || {
            // In vain where root may not either; the agent then says that it may not.
            let _ = fs::write("/proc/self/oom_score_adj", NODE_CRITICAL);
            mounts.carry_out()?;
            drop_capabilities(&capabilities)?;
            if no_new_privileges {
                nix::sys::prctl::set_no_new_privs()?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec it makes system calls only, on memory made before.
        Ok(unsafe { command.pre_exec(confine) })
    }
}

/// The numbers of capabilities.
fn numbers<'a>(names: impl Iterator<Item = &'a str>) -> Result<Vec<u32>> {
    let number = |name| {
        let known = CAPABILITIES.into_iter().find(|(known, _)| *known == name);
        known.map(|(_, number)| number).with_context(|| format!("unknown capability {name}"))
    };
    names.map(number).collect()
}

/// A root that executes a program gets what is in the bounding set, and nothing else.
fn drop_capabilities(kept: &[u32]) -> io::Result<()> {
    for number in (0..=LAST_CAPABILITY).filter(|number| !kept.contains(number)) {
        // SAFETY: the call takes integers.
        let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0) };
        // This kernel does not have it.
        if dropped != 0 && Errno::last() != Errno::EINVAL {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// What becomes of the mount table, decided before the fork.
struct Mounts {
    /// What other tests have mounted: a copy of it would keep it alive.
    removed: Vec<CString>,
    read_only: Vec<CString>,
}

impl Mounts {
    fn plan(writable: &Path, confinement: &Confinement) -> Result<Self> {
        let table = fs::read_to_string("/proc/self/mounts").context("read the mount table")?;
        let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
        let mut mounts = Self { removed: Vec::new(), read_only: Vec::new() };
        for point in points.filter(|point| !point.starts_with(writable)) {
            let path = CString::new(point.as_os_str().as_bytes())?;
            let stays = confinement.sees_namespaces && point.starts_with(NAMESPACES);
            let of_a_test = point.starts_with("/run") && point != Path::new("/run") && !stays;
            let is_system = point.starts_with("/sys");
            if point == Path::new("/proc") {
                // As in containers: of it only what is about the whole system is read-only.
                continue;
            } else if of_a_test {
                mounts.removed.push(path);
            } else if confinement.read_only_root || is_system {
                mounts.read_only.push(path);
            }
        }
        Ok(mounts)
    }

    /// In a mount namespace of its own. Mounts come and go meanwhile, and one that has gone
    /// needs nothing.
    fn carry_out(&self) -> io::Result<()> {
        const SYSCTLS: &str = "/proc/sys";
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        for path in self.removed.iter().rev() {
            let _ = umount2(path.as_c_str(), MntFlags::MNT_DETACH);
        }
        mount(Some(SYSCTLS), SYSCTLS, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        for path in &self.read_only {
            match mount(None::<&str>, path.as_c_str(), None::<&str>, read_only, None::<&str>) {
                Ok(()) | Err(Errno::ENOENT | Errno::EINVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(mount(None::<&str>, SYSCTLS, None::<&str>, read_only, None::<&str>)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn daemon_set(context: &Value) -> Value {
        let containers = json!([{"securityContext": context, "volumeMounts": [{"mountPath": "/run/netns"}]}]);
        json!({"spec": {"template": {"spec": {"containers": containers}}}})
    }

    #[test]
    fn a_security_context_says_what_is_left() -> Result<()> {
        let context = json!({
            "capabilities": {"drop": ["ALL"], "add": ["BPF", "NET_ADMIN"]},
            "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false,
        });
        let confinement = Confinement::of(&daemon_set(&context))?.context("confined")?;
        assert_eq!(confinement.capabilities, [39, 12]);
        assert!(confinement.read_only_root && confinement.no_new_privileges && confinement.sees_namespaces);
        assert!(confinement.has("BPF") && !confinement.has("SYS_ADMIN"));
        assert_eq!(Confinement::of(&daemon_set(&json!({"privileged": true})))?, None);
        let defaults = json!({"capabilities": {"add": ["BPF"]}});
        assert!(Confinement::of(&daemon_set(&defaults)).is_err(), "defaults of a runtime");
        let unknown = json!({"capabilities": {"drop": ["ALL"], "add": ["EVERYTHING"]}});
        assert!(Confinement::of(&daemon_set(&unknown)).is_err());
        Ok(())
    }

    #[test]
    fn a_unit_says_what_is_left() -> Result<()> {
        let confinement =
            Confinement::of_unit("CapabilityBoundingSet=CAP_BPF CAP_PERFMON\nNoNewPrivileges=yes\n")?;
        assert_eq!(confinement.capabilities, [39, 38]);
        assert!(confinement.no_new_privileges && !confinement.read_only_root);
        Ok(())
    }
}
