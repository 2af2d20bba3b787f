//! Keeps good what drivers remember of next hops (`next_hops`): tells them when it may have changed, and has the kernel
//! ask neighbours whether they are still there. Frames that a driver sends do not make it ask.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    net::IpAddr,
    time::Duration,
};

use futures::{StreamExt, channel::mpsc::UnboundedReceiver};
use rtnetlink::{
    Handle, MulticastGroup, new_multicast_connection,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        RouteNetlinkMessage,
        neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
    },
    sys::SocketAddr,
};
use tokio::{
    task::AbortHandle,
    time::{MissedTickBehavior, interval},
};

use super::{
    Datapath, KernelError,
    netlink::collect,
    next_hops::{NextHops, Routes},
};
use crate::tasks::Tasks;

/// How often neighbours that frames go to are asked whether they are still there, if nobody else asks.
const ASK: Duration = Duration::from_secs(5);

type Change = (NetlinkMessage<RouteNetlinkMessage>, SocketAddr);

/// Watches for as long as it is held: the tasks of the socket and of what it tells.
pub struct RouteWatch([AbortHandle; 2]);

impl RouteWatch {
    /// Watches the network namespace of this thread for the programs of `datapath`. Needs a tokio runtime.
    ///
    /// # Errors
    /// When there is no netlink socket, or a map cannot be opened.
    pub fn start(datapath: &Datapath, tasks: &mut Tasks) -> Result<Self, KernelError> {
        // Not `Nexthop`, whose messages the library cannot read: the kernel also tells of the routes that go by a next
        // hop object which changes (nexthop_compat_mode, Documentation/networking/ip-sysctl.rst).
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Neigh,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
            MulticastGroup::Ipv4Rule,
            MulticastGroup::Ipv6Rule,
        ];
        let (connection, handle, changes) = new_multicast_connection(&groups)
            .map_err(|source| KernelError::System { what: "open a netlink socket".into(), source })?;
        let pins = datapath.pins();
        let watch = Watch {
            handle,
            routes: Routes::open(pins)?,
            hops: NextHops::open(pins)?,
            neighbours: Neighbours::default(),
        };
        Ok(Self([
            tasks.spawn("the connection for routes", connection),
            tasks.spawn("the watch of routes", watch.run(changes)),
        ]))
    }
}

impl Drop for RouteWatch {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

struct Watch {
    handle: Handle,
    routes: Routes,
    hops: NextHops,
    neighbours: Neighbours,
}

impl Watch {
    async fn run(mut self, mut changes: UnboundedReceiver<Change>) {
        let mut asks = interval(ASK);
        asks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.list().await;
        loop {
            tokio::select! {
                change = changes.next() => {
                    let Some(change) = change else { return };
                    self.notice(change, &mut changes).await;
                }
                _ = asks.tick() => self.ask().await,
            }
        }
    }

    /// Notes a change, and those that have come with it.
    async fn notice(&mut self, change: Change, changes: &mut UnboundedReceiver<Change>) {
        let (mut counts, mut lost) = (false, false);
        let mut next = Some(change);
        while let Some((message, _)) = next {
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(message)) => {
                    counts |= self.neighbours.is_another(&message);
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(message)) => {
                    counts |= self.neighbours.is_gone(&message);
                }
                NetlinkPayload::Overrun(_) => (counts, lost) = (true, true),
                _ => counts = true,
            }
            next = changes.try_recv().ok();
        }
        if counts {
            self.forget();
        }
        if lost {
            self.list().await;
        }
    }

    fn forget(&mut self) {
        if let Err(error) = self.routes.changed() {
            tracing::warn!(%error, "drivers go by earlier routes for up to 640 ms");
        }
    }

    /// Reads which neighbours there are. Changes of those that it does not know count from the next time on.
    async fn list(&mut self) {
        match collect(self.handle.neighbours().get().execute()).await {
            Ok(all) => {
                self.neighbours = Neighbours::default();
                for message in &all {
                    self.neighbours.is_another(message);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot read the host's neighbours"),
        }
    }

    /// Has the kernel ask the neighbours that frames have gone to and that it is not sure of.
    async fn ask(&mut self) {
        let used = match self.hops.take() {
            Ok(used) => used,
            Err(error) => return tracing::warn!(%error, "cannot see where drivers send frames"),
        };
        if used.is_empty() {
            return;
        }
        match collect(self.handle.neighbours().get().execute()).await {
            Ok(all) => {
                for (ifindex, address) in unsure(&all, &used) {
                    let request = self.handle.neighbours().add(ifindex, address);
                    let request = request.flags(NeighbourFlags::Use).state(NeighbourState::None).replace();
                    if let Err(error) = request.execute().await {
                        tracing::debug!(%error, %address, "cannot have a neighbour asked whether it is there");
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "cannot read the host's neighbours"),
        }
    }
}

/// Neighbours of whose link-layer addresses some are `used`, and that may be gone.
fn unsure(all: &[NeighbourMessage], used: &BTreeSet<[u8; 6]>) -> Vec<(u32, IpAddr)> {
    let is_used = |mac: &[u8]| mac.try_into().is_ok_and(|mac: [u8; 6]| used.contains(&mac));
    all.iter()
        .filter(|message| message.header.state == NeighbourState::Stale && mac(message).is_some_and(is_used))
        .filter_map(|message| Some((message.header.ifindex, address(message)?)))
        .collect()
}

/// Link-layer addresses of neighbours, by device and address.
#[derive(Default)]
struct Neighbours(HashMap<(u32, IpAddr), Box<[u8]>>);

impl Neighbours {
    /// Notes a neighbour; true if frames went to it that are to go elsewhere. The kernel also tells when it asks one,
    /// and when one has answered.
    fn is_another(&mut self, message: &NeighbourMessage) -> bool {
        let (true, Some(mac)) = (is_valid(message.header.state), mac(message)) else {
            return self.is_gone(message);
        };
        let Some(address) = address(message) else { return false };
        match self.0.entry((message.header.ifindex, address)) {
            Entry::Occupied(known) if **known.get() == *mac => false,
            Entry::Occupied(mut known) => {
                known.insert(mac.into());
                true
            }
            Entry::Vacant(place) => {
                place.insert(mac.into());
                false
            }
        }
    }

    /// Notes that nothing is known of a neighbour; true if there was.
    fn is_gone(&mut self, message: &NeighbourMessage) -> bool {
        address(message).is_some_and(|address| self.0.remove(&(message.header.ifindex, address)).is_some())
    }
}

/// The kernel sends frames there (`NUD_VALID`).
fn is_valid(state: NeighbourState) -> bool {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    matches!(state, Permanent | Noarp | Reachable | Probe | Stale | Delay)
}

/// None of a row of a bridge.
fn address(message: &NeighbourMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some((*address).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some((*address).into()),
        _ => None,
    })
}

fn mac(message: &NeighbourMessage) -> Option<&[u8]> {
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(mac) => Some(&**mac),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(last: u8, state: NeighbourState, mac: Option<u8>) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        (message.header.ifindex, message.header.state) = (2, state);
        let address = NeighbourAddress::Inet([192, 0, 2, last].into());
        message.attributes.push(NeighbourAttribute::Destination(address));
        message.attributes.extend(mac.map(|mac| NeighbourAttribute::LinkLayerAddress(vec![mac; 6])));
        message
    }

    #[test]
    fn what_the_kernel_tells_of_neighbours_that_stay_does_not_count() {
        use NeighbourState::{Delay, Failed, Incomplete, Reachable, Stale};
        let mut neighbours = Neighbours::default();
        assert!(!neighbours.is_another(&neighbour(1, Incomplete, None)), "nobody has sent frames there");
        for state in [Reachable, Stale, Delay, Reachable] {
            assert!(!neighbours.is_another(&neighbour(1, state, Some(1))), "{state}");
        }
        assert!(neighbours.is_another(&neighbour(1, Reachable, Some(2))), "another link-layer address");
        assert!(neighbours.is_another(&neighbour(1, Failed, Some(2))));
        assert!(!neighbours.is_another(&neighbour(1, Failed, None)), "told before");
        neighbours.is_another(&neighbour(1, Stale, Some(1)));
        assert!(!neighbours.is_gone(&neighbour(2, Stale, None)));
        assert!(neighbours.is_gone(&neighbour(1, Stale, None)));
    }

    #[test]
    fn those_are_asked_that_frames_go_to_and_that_are_not_sure() {
        use NeighbourState::{Delay, Permanent, Reachable, Stale};
        let all = [
            neighbour(1, Stale, Some(1)),
            neighbour(2, Stale, Some(2)),
            neighbour(3, Reachable, Some(1)),
            neighbour(4, Delay, Some(1)),
            neighbour(5, Permanent, Some(1)),
            neighbour(6, Stale, None),
        ];
        assert_eq!(unsure(&all, &[[1; 6]].into()), [(2, [192, 0, 2, 1].into())]);
    }
}
