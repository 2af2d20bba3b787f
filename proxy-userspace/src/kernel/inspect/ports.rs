//! Who listens on a TCP port of this network namespace.

use std::{collections::HashMap, fs, path::Path};

/// A process that listens, as far as it can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Port number.
    pub port: u16,
    /// Name of the process; none if it is out of sight.
    pub process: Option<String>,
}

/// The listeners on these ports, one each.
pub fn listeners(ports: &[u16]) -> Vec<Listener> {
    let mut sockets: HashMap<u64, u16> = HashMap::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        let listening = text.lines().skip(1).filter_map(listening);
        sockets.extend(listening.filter(|(_, port)| ports.contains(port)));
    }
    let owners = owners(&sockets);
    let mut found: Vec<Listener> = Vec::new();
    for (inode, port) in sockets {
        if found.iter().all(|listener| listener.port != port) {
            found.push(Listener { port, process: owners.get(&inode).cloned() });
        }
    }
    found
}

/// Inode and port, if a line of the table (proc_net_tcp(5)) is about a socket that listens.
fn listening(line: &str) -> Option<(u64, u16)> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    (*state == LISTEN).then_some((inode.parse().ok()?, port))
}

/// Names of the processes that hold these sockets.
fn owners(sockets: &HashMap<u64, u16>) -> HashMap<u64, String> {
    let mut found = HashMap::new();
    if sockets.is_empty() {
        return found;
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes.map(|entry| entry.path()) {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        for descriptor in descriptors {
            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            let inode = socket_inode(&target).filter(|inode| sockets.contains_key(inode));
            if let (Some(inode), Ok(name)) = (inode, fs::read_to_string(process.join("comm"))) {
                found.insert(inode, name.trim().to_owned());
            }
        }
    }
    found
}

fn socket_inode(target: &Path) -> Option<u64> {
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_its_port() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let found = listeners(&[port]);
        assert_eq!(found.len(), 1);
        // The kernel keeps 15 bytes of a name.
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(found[0], Listener { port, process: Some(own.trim().to_owned()) });
        drop(socket);
        assert_eq!(listeners(&[port]), []);
    }
}
