//! Why a packet or connection was refused. The one table behind counters, events,
//! metrics and documents.

macro_rules! drop_reasons {
    ($($(#[doc = $help:literal])+ $variant:ident = $number:literal, $name:literal;)+) => {
        /// Why a packet or connection was refused.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason {
            $($(#[doc = $help])+ $variant = $number,)+
        }

        impl DropReason {
            /// Every reason, in the order of the numbers.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)+];

            /// The name in metrics and tables.
            pub fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)+ }
            }

            /// What it means, in a sentence for an operator.
            pub fn help(self) -> &'static str {
                match self { $(DropReason::$variant => concat!($($help),+).trim_ascii(),)+ }
            }
        }
    };
}

drop_reasons! {
    /// The service has no usable endpoint; the client was told at once.
    NoEndpoints = 0, "no-endpoints";
    /// The traffic policy is Local and no usable endpoint runs on this node; silently dropped.
    NoLocalEndpoint = 1, "no-local-endpoint";
    /// The ClusterIP exists but declares no such port; the client was told at once.
    UnknownPort = 2, "unknown-port";
    /// The address lies in a ServiceCIDR but belongs to no service; silently dropped.
    UnallocatedAddress = 3, "unallocated-address";
    /// Connections that last hold every source port for masquerading; silently dropped.
    SnatPortsExhausted = 4, "snat-ports-exhausted";
    /// The connection table is full of connections that last, or there is no memory for an entry; silently
    /// dropped.
    ConntrackFull = 5, "conntrack-full";
    /// A map row names a backend or slot that does not exist; silently dropped.
    InvalidMapState = 6, "invalid-map-state";
    /// The kernel refused to change the packet; silently dropped.
    RewriteFailed = 7, "rewrite-failed";
    /// The node has no address of this family to masquerade behind; silently dropped.
    NoNodeAddress = 8, "no-node-address";
    /// The host has no route to the backend; silently dropped.
    NoRoute = 9, "no-route";
    /// The client is outside the service's loadBalancerSourceRanges; silently dropped.
    SourceNotAllowed = 10, "source-not-allowed";
    /// More clients had to be refused than this CPU answers in a second; silently dropped.
    RejectRateLimited = 11, "reject-rate-limited";
    /// An encapsulated packet (DSR) names a backend that its service does not have on this node;
    /// silently dropped.
    UnknownDsrBackend = 12, "unknown-dsr-backend";
    /// The packet does not fit the path to the backend once it is encapsulated (DSR); the client
    /// was told the size that fits.
    PacketTooBig = 13, "packet-too-big";
    /// A fragment came before the first one of its packet and could not be held; it was left to the
    /// host's stack.
    FragmentNotHeld = 14, "fragment-not-held";
    /// An SCTP packet in fragments needs another port, which changes a checksum over all of them;
    /// silently dropped.
    FragmentedSctp = 15, "fragmented-sctp";
    /// The packet is in the middle of a connection that is not known, as after a restart of the node; the
    /// client was told at once.
    NoConnection = 16, "no-connection";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positions() {
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i, "{}", reason.name());
            assert!(!reason.help().is_empty());
        }
    }
}
