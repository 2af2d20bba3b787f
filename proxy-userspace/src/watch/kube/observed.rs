//! Sees what an API server says about one kind, bookmarks included, which are no events for those who follow the kind:
//! on a quiet cluster they are all that tells a live watch from a dead one.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use kube::{Client, Error};
use tower::service_fn;

use super::super::{WatchMetrics, convert::Kind};

/// The same client for requests about `kind`, which notes when something was heard of it.
pub(super) fn observed(client: &Client, kind: Kind, metrics: &Arc<WatchMetrics>) -> Client {
    let (inner, metrics) = (client.clone(), Arc::clone(metrics));
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request| {
        let (inner, metrics) = (inner.clone(), Arc::clone(&metrics));
        async move {
            let response = inner.send(request).await?;
            let good = response.status().is_success();
            let heard = move || {
                if good {
                    metrics.heard(kind);
                }
            };
            heard();
            Ok::<_, Error>(response.map(|body| {
                body.map_frame(move |frame| {
                    heard();
                    frame
                })
            }))
        }
    });
    Client::new(service, namespace)
}
