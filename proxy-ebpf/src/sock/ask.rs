//! What a call is answered with: a frontend, and a backend of it.

use aya_ebpf::{EbpfContext as _, helpers::generated as helper};
use proxy_common::{
    Tuple,
    maps::{
        events::Hook,
        frontends::{
            ClientClass, Frontend,
            flags::{MAGLEV, SOURCE_RANGES},
        },
    },
};

use super::{
    ALLOW, REFUSE,
    client::{Client, identify, netns, socket},
    exempt::is_exempt,
    place::{Call, Place},
};
use crate::{
    maps,
    stage::{
        affinity, classify,
        create::Owner,
        lookup::{lookup, may_connect},
        lost,
        select::{Choice, Refusal, candidates, chance, draw, select},
        trace,
    },
};

const ECONNREFUSED: i32 = 111;

/// A call to a frontend.
pub struct Asked<A> {
    pub frontend: Frontend,
    class: ClientClass,
    netns: u64,
    /// The address the socket is bound to, unspecified if none, and where it calls.
    from: Tuple<A>,
    told: trace::Call,
}

/// Whom the call asks for.
///
/// # Errors
/// The verdict, if it is not for us to choose a backend.
#[inline(always)]
pub fn ask<P: Place>(call: &Call<P>, hook: Hook) -> Result<Asked<P::Addr>, i32> {
    let peer = &call.peer;
    if !may_connect(&peer.addr, peer.port) {
        return Err(ALLOW);
    }
    let netns = netns(call.ctx);
    let class = classify::classify_socket(netns).ok_or(ALLOW)?;
    let from = Tuple {
        src: P::Addr::bound(socket(call.ctx)),
        dst: peer.addr,
        sport: 0,
        dport: peer.port,
        proto: call.proto,
    };
    let told = trace::Call { hook, ctx: call.ctx.as_ptr() };
    let mut frontend = Frontend::default();
    match lookup(peer.addr, peer.port, call.proto, &mut frontend) {
        Ok(None) => return Err(ALLOW),
        _ if is_exempt() => return Err(ALLOW),
        Ok(Some(_)) => {}
        Err(refusal) => return Err(refuse(&told, &from, class, &refusal)),
    }
    if frontend.flags & SOURCE_RANGES != 0 && class != ClientClass::Node {
        // Whether a pod is in the ranges shows in its packets: a socket may have no address yet.
        return Err(ALLOW);
    }
    Ok(Asked { frontend, class, netns, from, told })
}

/// True if the call goes where its program says, of which [`ask`] or [`Asked::choose`] has said `verdict`. While maps
/// are replaced, that may be a backend which the other generation has put in the place of a frontend.
#[inline(always)]
pub fn is_direct(verdict: i32) -> bool {
    verdict == ALLOW && !lost::is_moving()
}

impl<A: Client> Asked<A> {
    /// Chooses a backend.
    ///
    /// # Errors
    /// The verdict, if there is none for this caller.
    #[inline(always)]
    pub fn choose(&self, sport: impl Fn() -> u16) -> Result<Choice<A>, i32> {
        let choice = candidates(&self.frontend, self.class).and_then(|found| {
            let mut from = self.from;
            let mut sticks_as = from.src;
            if self.frontend.affinity_secs != 0 || self.frontend.flags & MAGLEV != 0 {
                let identity = identify(from.src, self.netns);
                (from.src, sticks_as) = (identity.addr, identity.sticks_as);
                from.sport = sport();
            }
            let settle = |range, draw| affinity::settle(&sticks_as, &self.frontend, range, draw);
            select::<A>(&self.frontend, found, draw(&self.frontend, &from, chance()), settle)
        });
        match choice {
            // Nothing leaves the host from a loopback address: only the packet path can give it another.
            Ok(choice) if self.from.src.is_loopback() && !choice.backend.addr.is_loopback() => Err(ALLOW),
            Ok(choice) => Ok(choice),
            Err(refusal) => {
                Err(refuse(&self.told, &self.from, self.class, &refusal.of(self.frontend.service)))
            }
        }
    }

    /// Counts the translation, and tells who listens.
    #[inline(always)]
    pub fn note(&self, choice: &Choice<A>) {
        let owner = Owner::new(&self.frontend, choice.id);
        owner.count::<A>();
        let to = Tuple { dst: choice.backend.addr, dport: choice.backend.port, ..self.from };
        trace::translated(&self.told, &self.from, &to, owner);
    }
}

/// Connection refused, as a reset or an ICMP error would have it. What is to be met with silence is left to the
/// packet path, if it meets it: packets of the host to its own addresses pass no edge.
#[inline(always)]
fn refuse<A: Client>(call: &trace::Call, from: &Tuple<A>, class: ClientClass, refusal: &Refusal) -> i32 {
    let stays_here = class == ClientClass::Node && maps::is_node_address(&from.dst);
    if !refusal.reject && !stays_here {
        return ALLOW;
    }
    maps::count_refusal(refusal.service, refusal.reason);
    trace::turned_away(call, from, refusal.service, refusal.reason);
    // SAFETY: the helper has no preconditions in these hooks (kernel 5.18 and later).
    unsafe { helper::bpf_set_retval(-ECONNREFUSED) };
    REFUSE
}
