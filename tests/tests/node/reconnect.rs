//! Sockets that are used in one way after the other under socket LB: a program always sees whom it speaks to.

use crate::{
    copies,
    udp::{is_told, write},
    world::{soon, two_nodes},
};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use tests::{
    agent::SocketLb,
    manifests,
    probe::{Bulk, Exchange, Outcome, PATIENCE_MS, Proto, Step, Steps},
    topology::cluster::{Cluster, Origin::Pod},
};

/// Where a step goes.
#[derive(Clone, Copy, Debug)]
enum To {
    /// The service `one`.
    One,
    /// Another with the same backend.
    Same,
    /// One with another backend.
    Other,
    /// The backend of the first two by its own address.
    Backend,
    /// A service without endpoints.
    Nobody,
    /// A service whose backend there is no way to.
    Unreachable,
}

/// What a program does with its socket.
#[derive(Clone, Copy, Debug)]
enum Do {
    Connect(To),
    /// Connects in vain.
    Fail(To),
    /// Speaks to whom it is connected to, which should be that one.
    Speak(To),
    /// Speaks to somebody by address.
    Send(To),
    Disconnect,
}
use Do::{Connect, Disconnect, Fail, Send, Speak};
use To::{Backend, Nobody, One, Other, Same, Unreachable};

impl To {
    fn address(self, v4: bool, proto: Proto) -> Result<SocketAddr> {
        let [port, own] = if proto == Proto::Udp { [53, 5353] } else { [90, 9090] };
        let (in_v4, in_v6, port) = match self {
            One => ("10.96.0.20", "fd00:96::20", port),
            Same => ("10.96.0.41", "fd00:96::41", port),
            Other => ("10.96.0.42", "fd00:96::42", port),
            Nobody => ("10.96.0.43", "fd00:96::43", port),
            Unreachable => ("10.96.0.44", "fd00:96::44", port),
            Backend => ("10.244.1.10", "fd00:244:1::10", own),
        };
        Ok(SocketAddr::new(if v4 { in_v4.parse()? } else { in_v6.parse()? }, port))
    }

    fn server(self) -> &'static str {
        if matches!(self, Other) { "pod2-1" } else { "pod1-1" }
    }
}

const NO_WAY: [&str; 2] = ["10.244.9.9", "fd00:244:9::9"];

fn world() -> Result<Cluster> {
    let mut cluster = two_nodes(SocketLb::All)?;
    write(&mut cluster, &objects()?)?;
    cluster.nodes[0].agent.wait_in_sync()?;
    let (client, _) = cluster.host(Pod(0, 1));
    client.netns.ip(&format!("route add unreachable {}\nroute add unreachable {}", NO_WAY[0], NO_WAY[1]))?;
    Ok(cluster)
}

fn objects() -> Result<Vec<Value>> {
    let mut objects = manifests::two_nodes()?;
    let others = [
        (Same, Some(["10.244.1.10", "fd00:244:1::10"])),
        (Other, Some(["10.244.2.10", "fd00:244:2::10"])),
        (Nobody, None),
        (Unreachable, Some(NO_WAY)),
    ];
    for (to, endpoint) in others {
        let name = format!("{to:?}").to_lowercase();
        let own = |v4| Ok::<IpAddr, anyhow::Error>(to.address(v4, Proto::Udp)?.ip());
        copies::add(&mut objects, &name, [own(true)?, own(false)?])?;
        copies::lead(&mut objects, &name, endpoint)?;
    }
    Ok(objects)
}

/// The steps by a socket of its own, in both families.
fn walk(cluster: &Cluster, proto: Proto, steps: &[Do]) -> Result<()> {
    [true, false].into_iter().try_for_each(|v4| walk_in(cluster, v4, proto, steps))
}

fn walk_in(cluster: &Cluster, v4: bool, proto: Proto, steps: &[Do]) -> Result<()> {
    walk_and_keep(cluster, v4, proto, steps, None)
}

fn walk_and_keep(
    cluster: &Cluster,
    v4: bool,
    proto: Proto,
    steps: &[Do],
    keep: Option<String>,
) -> Result<()> {
    let (host, worker) = cluster.host(Pod(0, 1));
    let step = |step: &Do| {
        Ok(match step {
            Connect(to) | Fail(to) => Step::Connect(to.address(v4, proto)?),
            Speak(_) => Step::Ask,
            Send(to) => Step::AskAt(to.address(v4, proto)?),
            Disconnect => Step::Disconnect,
        })
    };
    let (netns, taken) = (host.netns.path(), steps.iter().map(step).collect::<Result<_>>()?);
    let walk = Steps { netns, proto, steps: taken, keep };
    let mut outcomes = worker.walk(walk)?.into_iter();
    for (number, step) in steps.iter().enumerate() {
        let what = format!("{proto}, step {number} of {steps:?}");
        match (step, if matches!(step, Disconnect) { None } else { outcomes.next() }) {
            (Disconnect, _) | (Fail(_), Some(Outcome::Refused)) => {}
            (Connect(to) | Speak(to) | Send(to), Some(outcome)) => {
                let answer = outcome.answer(&what)?;
                let (expected, seen) = (to.address(v4, proto)?, answer.peer);
                ensure!(seen == expected, "{what}: the program sees {seen}, not {expected}");
                ensure!(answer.server == to.server(), "{what}: {answer}");
            }
            (_, other) => bail!("{what}: {other:?}"),
        }
    }
    Ok(())
}

#[test]
fn a_udp_socket_that_is_connected_anew_shows_whom_it_speaks_to() -> Result<()> {
    let cluster = world()?;
    for steps in [
        &[Connect(One), Connect(Other), Speak(Other), Connect(One)][..],
        &[Connect(One), Connect(Same), Connect(One)],
        &[Connect(One), Connect(Backend), Speak(Backend), Connect(Same)],
        &[Connect(One), Disconnect, Send(One), Connect(Other), Speak(Other)],
        &[Connect(One), Disconnect, Send(Same), Send(One), Send(Same)],
        &[Connect(One), Disconnect, Send(Backend), Connect(Backend)],
        &[Send(One), Connect(Other), Disconnect, Send(Other), Connect(One)],
        &[Send(One), Connect(Same), Speak(Same), Disconnect, Send(One)],
        &[Send(One), Connect(Backend), Speak(Backend), Disconnect, Send(One), Send(Backend)],
    ] {
        walk(&cluster, Proto::Udp, steps)?;
    }
    // Over IPv6 the kernel hands a socket that was connected nothing but what its last peer sends.
    for steps in [
        &[Connect(One), Disconnect, Send(Other), Send(One), Connect(Other), Speak(Other)][..],
        &[Send(One), Connect(Other), Disconnect, Send(One), Send(Other)],
    ] {
        walk_in(&cluster, true, Proto::Udp, steps)?;
    }
    Ok(())
}

#[test]
fn a_udp_socket_speaks_to_a_backend_and_its_service_in_turn() -> Result<()> {
    let cluster = world()?;
    for steps in [
        &[Send(One), Send(Backend), Send(One), Send(Backend)][..],
        &[Send(Backend), Send(One), Send(Same), Send(Backend), Send(Same), Send(Backend)],
    ] {
        walk(&cluster, Proto::Udp, steps)?;
    }
    Ok(())
}

#[test]
fn a_udp_socket_that_fails_to_connect_speaks_to_whom_it_did_before() -> Result<()> {
    let cluster = world()?;
    for in_vain in [Nobody, Unreachable] {
        for steps in [
            &[Fail(in_vain), Connect(One), Speak(One)][..],
            &[Connect(One), Fail(in_vain), Speak(One), Connect(Other), Fail(in_vain), Speak(Other)],
            &[Connect(Backend), Fail(in_vain), Speak(Backend), Connect(One)],
            &[Send(One), Fail(in_vain), Send(One), Send(Other)],
        ] {
            walk(&cluster, Proto::Udp, steps)?;
        }
    }
    Ok(())
}

/// The kernel may refuse a `connect` after socket LB has chosen a backend: then the socket still is connected as before,
/// and no program of ours runs when it sends.
#[test]
fn a_udp_socket_that_failed_to_connect_elsewhere_is_told_that_its_backend_is_gone() -> Result<()> {
    let mut cluster = world()?;
    let of_the_service: [&[Do]; 3] = [
        &[Connect(One), Fail(Unreachable)],
        &[Connect(Other), Connect(One), Fail(Unreachable), Fail(Unreachable)],
        &[Send(One), Connect(One), Fail(Unreachable)],
    ];
    let of_nobody: [&[Do]; 5] = [
        &[Connect(Backend), Fail(Unreachable), Send(One)],
        &[Connect(Backend), Send(One), Fail(Unreachable)],
        &[Send(One), Connect(Backend)],
        &[Connect(One), Connect(Backend), Fail(Unreachable)],
        &[Send(One), Connect(Other), Fail(Unreachable)],
    ];
    let sockets: Vec<_> = of_the_service
        .into_iter()
        .map(|steps| (steps, true))
        .chain(of_nobody.into_iter().map(|steps| (steps, false)))
        .flat_map(|(steps, goes)| [true, false].map(|v4| (format!("v4 {v4}: {steps:?}"), v4, steps, goes)))
        .collect();
    for (name, v4, steps, _) in &sockets {
        walk_and_keep(&cluster, *v4, Proto::Udp, steps, Some(name.clone()))?;
    }
    let mut objects = objects()?;
    copies::lead(&mut objects, "one", None)?;
    write(&mut cluster, &objects)?;
    let (_, worker) = cluster.host(Pod(0, 1));
    let exchange = |name: &String| {
        worker.exchange(Exchange { keep: name.clone(), timeout_ms: PATIENCE_MS, bulk: Bulk::default() })
    };
    for (name, ..) in sockets.iter().filter(|(.., goes)| *goes) {
        soon(|| is_told(&exchange(name)?).with_context(|| name.clone()))?;
    }
    // They would have gone in the same sweep.
    for (name, ..) in sockets.iter().filter(|(.., goes)| !goes) {
        exchange(name)?.answer(name)?;
    }
    Ok(())
}

#[test]
fn a_tcp_socket_that_is_connected_anew_shows_whom_it_speaks_to() -> Result<()> {
    let cluster = world()?;
    for steps in [
        &[Fail(Nobody), Connect(One), Speak(One)][..],
        &[Fail(Unreachable), Connect(Other), Speak(Other)],
        &[Connect(One), Disconnect, Connect(Other), Speak(Other)],
        &[Connect(One), Disconnect, Connect(Same), Disconnect, Connect(One)],
        &[Connect(One), Disconnect, Connect(Backend), Speak(Backend)],
        &[Connect(One), Disconnect, Fail(Unreachable), Connect(Backend), Speak(Backend)],
    ] {
        walk(&cluster, Proto::Tcp, steps)?;
    }
    Ok(())
}
