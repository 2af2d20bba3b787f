//! Takes a taint off this node: the one that keeps pods away until services work here.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Error,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::{sync::Notify, time::sleep};
use tracing::{debug, info, warn};

use crate::{model::Taint, tasks::Tasks};

/// Pauses after failures: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// Removes the taint whenever it is asked to.
#[derive(Clone, Debug)]
pub struct NodeTaint {
    taint: Taint,
    asked: Arc<Notify>,
}

impl NodeTaint {
    /// Starts waiting for the word.
    pub fn start(client: &Client, node_name: &str, taint: Taint, tasks: &mut Tasks) -> Self {
        let asked = Arc::new(Notify::new());
        let remover = Remover {
            nodes: Api::all(client.clone()),
            node_name: node_name.to_owned(),
            taint: taint.clone(),
        };
        tasks.spawn("what removes the node's taint", remover.run(Arc::clone(&asked)));
        Self { taint, asked }
    }

    /// Which one.
    pub fn taint(&self) -> &Taint {
        &self.taint
    }

    /// Lets it be removed soon, however often that fails at first.
    pub fn remove(&self) {
        self.asked.notify_one();
    }
}

struct Remover {
    nodes: Api<Node>,
    node_name: String,
    taint: Taint,
}

impl Remover {
    async fn run(self, asked: Arc<Notify>) {
        loop {
            asked.notified().await;
            let mut pause = PAUSES.0;
            while let Err(error) = self.remove().await {
                if pause == PAUSES.0 {
                    let (node, taint) = (&self.node_name, &self.taint);
                    warn!(
                        node, %taint, %error,
                        "cannot take the taint off this node; it takes the right to get and patch nodes; trying again"
                    );
                } else {
                    debug!(%error, "cannot take the taint off this node");
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }

    /// Writes the other taints as all there are, unless somebody has changed the node meanwhile.
    async fn remove(&self) -> Result<(), Error> {
        let Some(node) = self.nodes.get_opt(&self.node_name).await? else { return Ok(()) };
        let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let before = taints.len();
        taints.retain(|taint| *taint.key != *self.taint.key || *taint.effect != *self.taint.effect);
        if taints.len() == before {
            return Ok(());
        }
        // With the version it was read at, the API server refuses to overwrite what came after.
        let version = node.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
        self.nodes.patch(&self.node_name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        info!(node = self.node_name, taint = %self.taint, "services work here: took the taint off this node");
        Ok(())
    }
}
