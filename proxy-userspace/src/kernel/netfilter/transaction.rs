//! Changes of nftables that happen together or not at all.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NetlinkPayload};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily, NetfilterSubsystem,
    nftables::NfTablesMessage, none::ControlMessage,
};
use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::kernel::netlink_socket::NetlinkSocket;

/// Changes in the order in which they are to be made.
#[derive(Default)]
pub(super) struct Transaction(Vec<(u16, NetfilterMessage)>);

impl Transaction {
    pub(super) fn add(&mut self, family: NetfilterProtoFamily, change: NfTablesMessage) {
        self.push(NLM_F_CREATE, family, change);
    }

    pub(super) fn delete(&mut self, family: NetfilterProtoFamily, change: NfTablesMessage) {
        self.push(0, family, change);
    }

    fn push(&mut self, flags: u16, family: NetfilterProtoFamily, change: impl Into<NetfilterMessageInner>) {
        self.0.push((flags, NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), change)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes the changes.
    ///
    /// # Errors
    /// What the kernel said of the first that it refused; then none is made.
    pub(super) fn commit(self) -> io::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let mut socket = NetlinkSocket::open(NETLINK_NETFILTER)?;
        let bracket = |message: ControlMessage| {
            let header = NetfilterHeader::new(
                NetfilterProtoFamily::Unspec,
                0,
                u8::from(NetfilterSubsystem::NfTables).into(),
            );
            (0, NetfilterMessage::new(header, message))
        };
        let mut messages = vec![bracket(ControlMessage::BatchBegin)];
        messages.extend(self.0);
        // The last change is acknowledged, whatever became of the others.
        let last = messages.len() - 1;
        messages[last].0 |= NLM_F_ACK;
        messages.push(bracket(ControlMessage::BatchEnd));
        let last_number = socket.send_batch(
            messages
                .into_iter()
                .map(|(flags, message)| (flags | NLM_F_REQUEST, NetlinkPayload::InnerMessage(message))),
        )? - 1;
        let mut refused = None;
        loop {
            for (number, payload) in socket.receive_numbered::<NetfilterMessage>()? {
                let NetlinkPayload::Error(error) = payload else { continue };
                if error.code.is_some() {
                    refused.get_or_insert(error.to_io());
                }
                // An error about the batch as a whole has the number of its beginning.
                if number >= last_number || (number <= 1 && refused.is_some()) {
                    return refused.map_or(Ok(()), Err);
                }
            }
        }
    }
}
