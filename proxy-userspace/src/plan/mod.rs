//! The exact rows a service and a node need, made from scratch each time.
//!
//! All of Kubernetes' semantics end here: what follows only carries rows out. Nothing
//! in this folder knows what the kernel holds.

mod build;
pub mod maglev;
mod needs;
mod node;
mod row;
mod rules;
mod scopes;

pub use build::build;
pub use needs::{Largest, Needs, Slots, needs};
pub use node::{Host, Takeover, node};
pub use row::{BackendRow, ClientRules, FrontendRow, LacksLocal, NodePlan, PortPlan, Scope, Spread};
