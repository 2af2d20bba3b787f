//! What the driver of a device can do with XDP, from the generic netlink family `netdev`
//! (linux/netdev.h, since kernel 6.3).

use std::io;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkPayload, NlasIterator};
use netlink_sys::protocols::NETLINK_GENERIC;

use crate::kernel::netlink_socket::{NetlinkSocket, RawMessage};

/// `NETDEV_XDP_ACT_NDO_XMIT`: the device sends what XDP on another device redirects to it.
pub(super) const NDO_XMIT: u64 = 4;

/// The family of families (linux/genetlink.h), its question for one by name, and attributes.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;

/// Length of the header of generic netlink: command, version, two reserved bytes.
const HEADER_LEN: usize = 4;

/// Bits `NETDEV_XDP_ACT_*` of a device; nothing where the kernel does not know the question.
pub(super) fn features(ifindex: u32) -> io::Result<Option<u64>> {
    let mut socket = NetlinkSocket::open(NETLINK_GENERIC)?;
    let by_name = question(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let family = ask(&mut socket, by_name, CTRL_ATTR_FAMILY_ID)?;
    let Some(family) = family.and_then(|id| Some(u16::from_ne_bytes(id.try_into().ok()?))) else {
        return Ok(None);
    };
    let device = question(family, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
    let features = ask(&mut socket, device, NETDEV_A_DEV_XDP_FEATURES)?;
    Ok(features.and_then(|bits| Some(u64::from_ne_bytes(bits.try_into().ok()?))))
}

/// The value of one attribute of the answer, if there is an answer.
fn ask(socket: &mut NetlinkSocket, question: RawMessage, kind: u16) -> io::Result<Option<Vec<u8>>> {
    socket.send(NLM_F_REQUEST, NetlinkPayload::InnerMessage(question))?;
    let answers = socket.receive::<RawMessage>()?;
    Ok(answers.into_iter().find_map(|answer| match answer {
        NetlinkPayload::InnerMessage(answer) => attribute(&answer, kind),
        _ => None,
    }))
}

/// A question with one attribute.
fn question(family: u16, command: u8, attribute: u16, value: &[u8]) -> RawMessage {
    let mut bytes = vec![command, 1, 0, 0];
    bytes.extend((HEADER_LEN as u16 + value.len() as u16).to_ne_bytes());
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    RawMessage { kind: family, bytes }
}

fn attribute(message: &RawMessage, kind: u16) -> Option<Vec<u8>> {
    let attributes = NlasIterator::new(message.bytes.get(HEADER_LEN..)?);
    attributes.flatten().find(|attribute| attribute.kind() == kind).map(|found| found.value().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_features_and_no_device_has_no_answer() {
        // A kernel before 6.3 answers neither.
        assert_eq!(features(1).unwrap().unwrap_or(0), 0);
        assert_eq!(features(u32::MAX >> 1).unwrap(), None);
    }
}
