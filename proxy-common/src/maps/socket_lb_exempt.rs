//! `socket_lb_exempt`: hash, cgroups whose processes socket LB leaves alone.
//!
//! The key is the kernel's 64-bit id of a cgroup of the v2 hierarchy, which is the inode
//! number of its directory and is never given out twice; the value says nothing. A
//! cgroup stands for all cgroups below it: a pod's, for those of its containers.

/// Number of rows: pods of one node.
pub const CAPACITY: u32 = 4096;

/// How deep below the root of the hierarchy a row's cgroup may be. kubelet makes pods'
/// cgroups at depth 2 or 3; a node that is itself a container has some more above.
pub const DEPTH: i32 = 10;
