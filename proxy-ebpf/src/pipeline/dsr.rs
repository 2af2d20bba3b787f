//! Packets inside others, at the node of their backend: they are taken out, and the ingress
//! program goes on with them as with any packet of a connection it knows.

use proxy_common::{
    DropReason, Tuple,
    maps::{
        address_filter::flags::{BACKEND, FRONTEND},
        conntrack::Role,
        frontends::Kind,
        tails::Tail,
    },
    packet::{Parsed, Transport},
};

use super::{Family, Verdict, go_on_in, parsed};
use crate::{
    maps,
    packet::{Buffer, Inner, Packet},
    stage::{
        conntrack::{self, Arrival},
        create, decap,
        output::{self, How, Output},
        ports,
        route::{self, Answer},
    },
};

/// An encapsulated packet enters the host's stack.
#[inline(always)]
pub fn ingress<P: Buffer, A: Family>(packet: &P) -> Verdict {
    let Some(outer) = A::transport(packet) else { return Output::CONTINUE.into() };
    // We make none with options or extensions, nor any that is cut into fragments.
    let plain = outer.offset == P::L2_LEN + A::HEADER_LEN as usize && !outer.is_fragment();
    let to_backend = maps::address_bits(&outer.dst) & BACKEND != 0;
    if outer.proto != A::ENCAPSULATED || !plain || !to_backend || !A::may_be_our_outer(packet) {
        return Output::CONTINUE.into();
    }
    let inner = Inner::<P, A>::of(packet);
    let Some(transport) = A::transport(&inner) else { return Output::CONTINUE.into() };
    let arrival = Arrival::uncounted(packet, P::ENTRY);
    match admit(&arrival, &inner, transport, &outer.dst) {
        Ok(true) => {}
        Ok(false) => return Output::CONTINUE.into(),
        Err(reason) => return Err(reason).into(),
    }
    if let Err(reason) = packet.decapsulate(A::HEADER_LEN) {
        return Err(reason).into();
    }
    // Once more: the stack has no room to keep it meanwhile.
    match A::transport(packet) {
        Some(inner) => go_on(packet, &inner.src),
        None => Output::CONTINUE.into(),
    }
}

/// True if the inner packet is ours; its connection is then known.
#[inline(always)]
fn admit<P: Packet, A: Family>(
    arrival: &Arrival,
    inner: &Inner<P, A>,
    transport: Transport<A>,
    backend: &A,
) -> Result<bool, DropReason> {
    if transport.fragment_offset == 0 && transport.proto != A::ICMP {
        return parsed(inner, transport).map_or(Ok(false), |parsed| connect(arrival, parsed, backend));
    }
    // It has no ports of its own. Whether it belongs to a connection is found out further on.
    // Nobody sends by this way what goes to an address of this host; another tunnel may.
    let to_frontend = maps::address_bits(&transport.dst) & FRONTEND != 0;
    Ok(to_frontend && maps::node_address(&transport.dst).is_none())
}

/// Opens the connection unless it is known; false if it would not be ours.
#[inline(always)]
fn connect<A: Family>(arrival: &Arrival, parsed: &Parsed<A>, backend: &A) -> Result<bool, DropReason> {
    if conntrack::is_known(parsed, Role::DNAT) {
        return Ok(true);
    }
    // A tunnel of somebody else.
    let Some(frontend) = decap::frontend(&parsed.tuple) else { return Ok(false) };
    let choice = match decap::select(frontend, &parsed.tuple, backend) {
        // Any port of a pod, in somebody else's tunnel, may have the number of a NodePort.
        Err(DropReason::UnknownDsrBackend) if frontend.kind == Kind::NODE_PORT.0 => return Ok(false),
        choice => choice?,
    };
    // A NodePort is reached at the address of the node that the client came to.
    maps::admit_address(&parsed.tuple.dst, FRONTEND);
    create::create(arrival, parsed, frontend, &choice, ports::hash(&parsed.tuple))?;
    Ok(true)
}

/// Has the ingress program take the inner packet. One that came by an overlay would be taken
/// for a forgery where the way to the client is another: it enters where the client's own
/// packets would.
#[inline(always)]
fn go_on<P: Packet, A: Family>(packet: &P, client: &A) -> Verdict {
    let back = Tuple { src: A::default(), dst: *client, sport: 0, dport: 0, proto: A::ENCAPSULATED };
    let way = route::find(packet, &back, 0);
    let known = way.answer == Answer::Reachable || way.answer == Answer::Unresolved;
    if !known || way.ifindex == packet.ifindex() || P::L2_LEN == 0 {
        return go_on_in(packet, Tail::In);
    }
    output::address_to(packet, way.ifindex).map(|()| Output::by(How::Receive, way.ifindex)).into()
}
