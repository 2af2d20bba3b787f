//! Where a client sits, as far as traffic policies care.

use proxy_common::{
    Addr, Ip4, Ip6,
    maps::{
        devices,
        frontends::ClientClass,
        settings::{Settings, flags},
    },
};

use crate::maps;

/// Addresses that may be recognised as a pod's by the cluster's range.
pub trait PodRange: Addr {
    fn in_pod_range(&self, settings: &Settings) -> bool;
}

impl PodRange for Ip4 {
    #[inline(always)]
    fn in_pod_range(&self, settings: &Settings) -> bool {
        settings.flags & flags::PODS_BY_CIDR_V4 != 0
            && self.in_prefix(&settings.pod_cidr_v4, settings.pod_cidr_bits_v4)
    }
}

impl PodRange for Ip6 {
    #[inline(always)]
    fn in_pod_range(&self, settings: &Settings) -> bool {
        settings.flags & flags::PODS_BY_CIDR_V6 != 0
            && self.in_prefix(&settings.pod_cidr_v6, settings.pod_cidr_bits_v6)
    }
}

/// The class of the sender of a packet that came in on `ifindex`.
#[inline(always)]
pub fn classify<A: PodRange>(src: &A, ifindex: u32) -> ClientClass {
    let Some(settings) = maps::settings() else { return ClientClass::External };
    let by_device = settings.flags & flags::PODS_BY_DEVICE != 0
        && maps::device(ifindex).is_some_and(|d| d.flags & devices::flags::POD != 0);
    if by_device || src.in_pod_range(settings) { ClientClass::Pod } else { ClientClass::External }
}

/// The class of a process that opens a connection: nothing if socket LB does not serve it.
#[inline(always)]
pub fn classify_socket(netns_cookie: u64) -> Option<ClientClass> {
    let settings = maps::settings()?;
    if netns_cookie == settings.host_netns_cookie {
        return (settings.flags & flags::SOCKET_LB_HOST != 0).then_some(ClientClass::Node);
    }
    if settings.flags & flags::SOCKET_LB_PODS == 0 {
        return None;
    }
    const DETECTION: u32 = flags::PODS_BY_CIDR_V4 | flags::PODS_BY_CIDR_V6 | flags::PODS_BY_DEVICE;
    // Without detection there is no short cut for pods, on this path either.
    Some(if settings.flags & DETECTION != 0 { ClientClass::Pod } else { ClientClass::External })
}
