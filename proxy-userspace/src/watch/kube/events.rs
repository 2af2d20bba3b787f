//! Events about the node and about Services, for those who look at the cluster and not at this agent's log
//! (`kubectl describe`). Nothing depends on them: what cannot be published is dropped.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::{model::ObjectName, tasks::Tasks};

/// Events that may wait for the API server; more than that says nothing new.
const WAITING: usize = 16;

/// What an event is shown with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// This node.
    Node,
    /// A Service, with its UID.
    Service(ObjectName, Arc<str>),
}

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it is shown with.
    pub about: About,
    /// One word for what it is.
    pub reason: &'static str,
    /// What it is about; notices of one reason and subject are counted as one event.
    pub subject: String,
    /// A sentence for people.
    pub note: String,
}

/// Publishes notices as Kubernetes Events.
#[derive(Clone, Debug)]
pub struct Events {
    notices: mpsc::Sender<Notice>,
}

impl Events {
    /// Starts publishing for the node of that name.
    pub fn start(client: &Client, node_name: &str, tasks: &mut Tasks) -> Self {
        let (notices, waiting) = mpsc::channel(WAITING);
        let reporter = Reporter { controller: "shunt".into(), instance: Some(node_name.into()) };
        let recorder = Recorder::new(client.clone(), reporter);
        tasks.spawn("what publishes events", publish(recorder, node_name.into(), waiting));
        Self { notices }
    }

    /// Publishes a notice soon, or never if too many wait.
    pub fn publish(&self, notice: Notice) {
        if let Err(error) = self.notices.try_send(notice) {
            debug!(%error, "an event is not published");
        }
    }
}

/// The node as its kubelet refers to it in events: `kubectl describe` looks for this UID.
fn node(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(name.into()),
        uid: Some(name.into()),
        ..ObjectReference::default()
    }
}

fn service(name: &ObjectName, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Service".into()),
        namespace: Some(name.namespace.to_string()),
        name: Some(name.name.to_string()),
        uid: Some(uid.into()),
        ..ObjectReference::default()
    }
}

async fn publish(recorder: Recorder, node_name: String, mut waiting: mpsc::Receiver<Notice>) {
    let mut failing = false;
    while let Some(notice) = waiting.recv().await {
        let about = match &notice.about {
            About::Node => node(&node_name),
            About::Service(name, uid) => service(name, uid),
        };
        let event = Event {
            type_: EventType::Warning,
            reason: notice.reason.into(),
            note: Some(notice.note),
            action: notice.subject,
            secondary: None,
        };
        match recorder.publish(&event, &about).await {
            Ok(()) => failing = false,
            Err(error) if std::mem::replace(&mut failing, true) => debug!(%error, "cannot publish an event"),
            Err(error) => warn!(
                %error,
                "cannot publish events; it takes the right to create and patch events.events.k8s.io"
            ),
        }
    }
}
