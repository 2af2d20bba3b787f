use super::*;
use crate::{model::Node, watch::convert::Rejected};

fn slice_key(name: &str) -> ObjectKey {
    ObjectKey { kind: Kind::EndpointSlice, name: ObjectName::new("ns", name) }
}

/// A node stands for any object: it is the smallest.
fn node(name: &str) -> Signal {
    node_at(name, None)
}

fn node_at(name: &str, version: Option<u64>) -> Signal {
    let key = ObjectKey { kind: Kind::Node, name: ObjectName::new("", name) };
    let change = Ok(Change::Node(Node { name: name.into(), ..Node::default() }));
    Signal::Object(Box::new(Found { key, change, ignored: Vec::new(), triggered: None }), version)
}

fn refused(name: &str) -> Signal {
    let key = ObjectKey { kind: Kind::Node, name: ObjectName::new("", name) };
    let change = Err(Rejected::NoSpec);
    Signal::Object(Box::new(Found { key, change, ignored: Vec::new(), triggered: None }), None)
}

fn listed() -> Gather {
    let mut gather = Gather::new(Arc::default());
    for kind in Kind::ALL {
        gather.take(Signal::ListBegins(kind));
        if kind == Kind::Node {
            gather.take(node("a"));
            gather.take(node("b"));
        }
        gather.take(Signal::ListEnds(kind));
    }
    assert_eq!(gather.batch().unwrap().changes.len(), 2);
    gather
}

#[test]
fn the_first_lists_are_handed_on_in_parts_and_the_last_part_says_so() {
    let mut gather = Gather::new(Arc::default());
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Pod, Kind::Namespace] {
        gather.take(Signal::ListBegins(kind));
        gather.take(Signal::ListEnds(kind));
    }
    gather.take(Signal::ListBegins(Kind::Node));
    gather.take(node("a"));
    gather.take(Signal::Lacking(Kind::ServiceCidr));
    let part = gather.batch().unwrap();
    assert_eq!((part.initial, part.revision, part.changes.len()), (false, 0, 1));
    assert!(gather.batch().is_none());
    gather.take(Signal::ListEnds(Kind::Node));
    let batch = gather.batch().unwrap();
    assert_eq!((batch.initial, batch.revision, batch.changes.len()), (true, 1, 0));
    assert!(gather.batch().is_none());
}

#[test]
fn an_empty_cluster_is_an_answer() {
    let mut gather = Gather::new(Arc::default());
    Kind::ALL.into_iter().for_each(|kind| gather.take(Signal::ListEnds(kind)));
    let batch = gather.batch().unwrap();
    assert_eq!((batch.initial, batch.changes.len()), (true, 0));
}

#[test]
fn what_a_new_list_lacks_is_gone_and_what_it_refuses_stays() {
    let mut gather = listed();
    gather.take(Signal::ListBegins(Kind::Node));
    gather.take(node("x"));
    assert_eq!(gather.batch().unwrap().changes.len(), 1, "new objects need not wait for the end of a list");
    gather.take(Signal::ListBegins(Kind::Node));
    gather.take(refused("a"));
    gather.take(Signal::ListEnds(Kind::Node));
    let batch = gather.batch().unwrap();
    let mut gone: Vec<_> = batch.changes.iter().map(|c| format!("{c:?}")).collect();
    gone.sort();
    assert_eq!(gone, [r#"NodeGone("b")"#, r#"NodeGone("x")"#]);
    assert_eq!((batch.initial, gather.metrics.rejected(Kind::Node)), (false, 1));
}

#[test]
fn only_what_was_reported_can_go() {
    let mut gather = listed();
    gather.take(Signal::Gone(slice_key("never-seen"), None));
    assert!(gather.batch().is_none());
}

#[test]
fn versions_of_a_list_count_when_it_is_complete() {
    let mut gather = listed();
    gather.take(node_at("a", Some(7)));
    let told = |gather: &mut Gather| gather.batch().unwrap().versions.to_string();
    assert_eq!(told(&mut gather), "Node=7");
    gather.take(Signal::ListBegins(Kind::Node));
    gather.take(node_at("a", Some(12)));
    gather.take(node_at("b", Some(9)));
    assert_eq!(told(&mut gather), "Node=7");
    gather.take(Signal::ListEnds(Kind::Node));
    gather.take(Signal::Gone(ObjectKey { kind: Kind::Node, name: ObjectName::new("", "b") }, Some(15)));
    gather.take(Signal::Gone(slice_key("never-seen"), Some(20)));
    assert_eq!(told(&mut gather), "EndpointSlice=20 Node=15");
}

/// Everything is listed but pods, of which nothing was heard.
fn listed_without_pods() -> Gather {
    let mut gather = Gather::new(Arc::default());
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Pod) {
        gather.take(Signal::ListBegins(kind));
        gather.take(Signal::ListEnds(kind));
    }
    gather
}

const PODS: Unknown = Unknown { service_cidrs: false, pods: true, namespaces: false };

#[test]
fn what_is_not_shown_is_unknown_until_it_is() {
    let mut gather = listed_without_pods();
    gather.take(Signal::Denied(Kind::Pod));
    let batch = gather.batch().unwrap();
    assert_eq!((batch.initial, batch.unknown), (true, PODS));
    gather.take(Signal::Denied(Kind::Pod));
    assert!(gather.batch().is_none(), "no news");
    gather.take(Signal::ListBegins(Kind::Pod));
    gather.take(Signal::ListEnds(Kind::Pod));
    let batch = gather.batch().expect("an empty list is news");
    assert_eq!((batch.initial, batch.unknown, batch.revision), (false, Unknown::default(), 2));
    assert!(gather.batch().is_none());
}

#[test]
fn what_was_listed_stays_when_it_is_not_shown_any_more() {
    for signal in [Signal::Denied, Signal::Lacking] {
        let mut gather = listed();
        gather.take(signal(Kind::ServiceCidr));
        gather.take(signal(Kind::Pod));
        assert!(gather.batch().is_none());
        gather.take(node("x"));
        assert_eq!(gather.batch().unwrap().unknown, Unknown::default());
    }
}

#[test]
fn a_kind_that_the_server_does_not_have_is_empty() {
    let mut gather = Gather::new(Arc::default());
    for kind in Kind::ALL {
        gather.take(if kind == Kind::ServiceCidr { Signal::Lacking(kind) } else { Signal::ListEnds(kind) });
    }
    let batch = gather.batch().unwrap();
    assert_eq!((batch.initial, batch.unknown), (true, Unknown::default()));
}

#[tokio::test(start_paused = true)]
async fn services_do_not_wait_long_for_what_is_not_needed_to_serve_them() {
    let (signals, gathered) = mpsc::channel(16);
    let (tx, mut batches) = mpsc::channel(4);
    tokio::spawn(run(gathered, tx, Arc::default()));
    let send = async |signal| signals.send((Instant::now(), signal)).await.expect("gathers");
    let (required, optional): (Vec<_>, Vec<_>) =
        Kind::ALL.into_iter().partition(|kind| Optional::of(*kind).is_none());
    // It takes its time to list what is needed, and all of it is waited for.
    for kind in required {
        time::sleep(2 * PATIENCE).await;
        assert!(batches.try_recv().is_err());
        send(Signal::ListEnds(kind)).await;
    }
    let listed = time::Instant::now();
    let batch = batches.recv().await.expect("a batch");
    assert_eq!((batch.initial, listed.elapsed()), (true, PATIENCE));
    assert_eq!(batch.unknown, Unknown { service_cidrs: true, pods: true, namespaces: true });
    for kind in optional {
        send(Signal::ListEnds(kind)).await;
    }
    let mut unknown = batch.unknown;
    while unknown != Unknown::default() {
        unknown = batches.recv().await.expect("a batch").unknown;
    }
}
