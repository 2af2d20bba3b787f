//! Packets inside others, at the node of their backend.

use proxy_common::{
    DropReason, Tuple,
    maps::{
        conntrack::{INGRESS, Role},
        frontends::FrontendKey,
    },
    packet::{Parsed, Transport, bounded, parse},
};

use super::{Family, Verdict};
use crate::{
    maps,
    packet::{Inner, Packet},
    stage::{
        conntrack, decap, nat,
        output::{self, How, Output},
        route::{self, Answer},
        select::Refusal,
    },
};

/// An encapsulated packet enters the host's stack.
#[inline(always)]
pub fn ingress<P: Packet, A: Family>(packet: &P) -> Verdict {
    let Some(outer) = A::transport(packet) else { return Output::CONTINUE.into() };
    // We make none with options or extensions, nor any that is cut into fragments.
    let plain = outer.offset == P::L2_LEN + A::HEADER_LEN as usize && !outer.is_fragment();
    if outer.proto != A::ENCAPSULATED || !plain {
        return Output::CONTINUE.into();
    }
    let inner = Inner::<P, A>::of(packet);
    let Some(transport) = A::transport(&inner) else { return Output::CONTINUE.into() };
    let taken = if transport.is_fragment() || transport.proto == A::ICMP {
        recirculate(packet, &inner, transport, &outer.dst)
    } else {
        deliver(packet, &inner, transport, &outer.dst)
    };
    taken.unwrap_or_else(|refusal| Verdict { output: Output::DROP, refused: Some(refusal.reason) })
}

/// Takes out a whole packet and sends it up as one from the client to the backend.
#[inline(always)]
fn deliver<P: Packet, A: Family>(
    packet: &P,
    inner: &Inner<P, A>,
    transport: Transport<A>,
    backend: &A,
) -> Result<Verdict, Refusal> {
    let Some(mut parsed) = parse(inner, transport) else { return Ok(Output::CONTINUE.into()) };
    let Some(target) = connection(&parsed, backend)? else { return Ok(Output::CONTINUE.into()) };
    packet.decapsulate(A::HEADER_LEN)?;
    parsed.transport.offset = bounded(parsed.transport.offset - A::HEADER_LEN as usize);
    nat::rewrite(packet, &parsed, &target)?;
    Ok(where_from_client(packet, &target)?.into())
}

/// What becomes of the inner packet, in a connection that is known or begins.
#[inline(always)]
fn connection<A: Family>(parsed: &Parsed<A>, backend: &A) -> Result<Option<Tuple<A>>, Refusal> {
    if let Some(row) = conntrack::find(parsed, INGRESS)
        && row.role == Role::DNAT.0
    {
        return Ok(Some(row.target(parsed.tuple.proto)));
    }
    // A tunnel of somebody else.
    let Some(frontend) = decap::frontend(&parsed.tuple) else { return Ok(None) };
    let choice = decap::select(frontend, &parsed.tuple, backend)?;
    Ok(Some(conntrack::create(parsed, frontend.service, &choice)?))
}

/// Takes out what the ingress program has other programs for, and has it come in anew.
#[inline(always)]
fn recirculate<P: Packet, A: Family>(
    packet: &P,
    inner: &Inner<P, A>,
    transport: Transport<A>,
    backend: &A,
) -> Result<Verdict, Refusal> {
    let ours = if transport.proto != A::ICMP && transport.fragment_offset == 0 {
        match parse(inner, transport) {
            Some(parsed) => connection(&parsed, backend)?.is_some(),
            None => false,
        }
    } else {
        let address = FrontendKey { addr: transport.dst, port: 0, proto: 0, pad: 0 };
        maps::frontend(&address).is_some()
    };
    if !ours {
        return Ok(Output::CONTINUE.into());
    }
    packet.decapsulate(A::HEADER_LEN)?;
    Ok(Output::by(How::Receive, packet.ifindex()).into())
}

/// A client's packet that came by an overlay would be taken for a forgery where the way to
/// the client is another: it enters where the client's own packets would.
#[inline(always)]
fn where_from_client<P: Packet, A: Family>(packet: &P, target: &Tuple<A>) -> Result<Output, DropReason> {
    let way = route::find(packet, &target.reversed(), 0);
    let known = way.answer == Answer::Reachable || way.answer == Answer::Unresolved;
    if !known || way.ifindex == packet.ifindex() || P::L2_LEN == 0 {
        return Ok(Output::CONTINUE);
    }
    output::address_to(packet, way.ifindex)?;
    Ok(Output::by(How::Receive, way.ifindex))
}
