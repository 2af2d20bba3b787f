//! The node tier: namespaces as nodes, pods and clients, an agent on each node, and real
//! sockets. Needs root.

mod stage;
