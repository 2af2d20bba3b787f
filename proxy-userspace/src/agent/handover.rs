//! Attaching the programs: at once where an earlier agent's go on in them, else step by step with
//! those of an earlier generation still attached. At the start and whenever maps grow.

use anyhow::{Context, Result};
use tokio::time::Instant;
use tracing::{info, warn};

use super::Agent;
use crate::model::SocketLb;

impl Agent {
    /// Makes this generation the one in service. The maps hold what is wanted, as far as it is known.
    pub(super) fn go_into_service(&mut self) -> Result<()> {
        if !self.datapath.is_taking_over() {
            self.follow_edges();
            // Only now do the edges serve what the socket hooks served.
            self.socket_lb_off();
            return Ok(());
        }
        let start = Instant::now();
        let begun = self.datapath.begin_handover(&mut self.maps);
        begun.context("the earlier programs stay in service")?;
        info!("attaching behind the programs of the earlier generation");
        if let Err(error) = self.attach_sockets() {
            self.datapath.abort_handover();
            return Err(error.context("the earlier programs stay in service"));
        }
        self.follow_edges();
        let moved = self.datapath.finish_handover(&mut self.maps);
        let moved = moved.with_context(|| match self.datapath.is_taking_over() {
            true => "the handover is not complete; the next start completes it",
            false => "the earlier programs stay in service",
        })?;
        // Now XDP, which a device has only one program of.
        self.follow_edges();
        let duration_us = start.elapsed().as_micros() as u64;
        let (connections, flows) = (moved.connections, moved.other_flows);
        info!(connections, flows, duration_us, "took over from an earlier generation");
        Ok(())
    }

    /// Attaches the socket hooks.
    pub(super) fn attach_sockets(&mut self) -> Result<()> {
        if self.socket_lb != SocketLb::Off {
            self.datapath.set_socket_lb(true)?;
        }
        if let Err(error) = self.datapath.protect_node_ports() {
            warn!(%error, "other processes can bind the NodePorts of services");
        }
        Ok(())
    }

    fn socket_lb_off(&mut self) {
        if self.socket_lb == SocketLb::Off
            && let Err(error) = self.datapath.set_socket_lb(false)
        {
            warn!(%error, "cannot remove the socket hooks of an earlier agent");
        }
    }
}
