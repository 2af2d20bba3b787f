//! A netlink socket for questions that are answered at once. Sends and receives messages;
//! knows nothing of what they say.

use std::{convert::Infallible, io};

use netlink_packet_core::{
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};
use nix::sys::socket::{setsockopt, sockopt};

/// The kernel sends no larger part of a dump at once, and no single answer of ours is larger.
const RECEIVE_BUFFER: usize = 32 * 1024;

/// Messages begin at multiples of so many bytes.
const ALIGNMENT: usize = 4;

/// A socket that is connected to the kernel, in the network namespace of its thread.
pub(super) struct NetlinkSocket {
    socket: Socket,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// Opens a socket for one of `netlink_sys::protocols`.
    pub(super) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, buffer: vec![0; RECEIVE_BUFFER] })
    }

    /// Has errors come with what the kernel says about them, after the header of the request.
    pub(super) fn explain_errors(&self) -> io::Result<()> {
        self.socket.set_cap_ack(true)?;
        self.socket.set_ext_ack(true)
    }

    pub(super) fn send<T: NetlinkSerializable>(
        &self,
        flags: u16,
        payload: NetlinkPayload<T>,
    ) -> io::Result<()> {
        self.socket.send(&serialize(0, flags, payload), 0).map(drop)
    }

    /// Sends messages that belong together as one, numbered from 1 on; returns the number of the last.
    pub(super) fn send_batch<T: NetlinkSerializable>(
        &self,
        messages: impl Iterator<Item = (u16, NetlinkPayload<T>)>,
    ) -> io::Result<u32> {
        let (mut bytes, mut number) = (Vec::new(), 0);
        for (flags, payload) in messages {
            number += 1;
            bytes.extend(serialize(number, flags, payload));
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        }
        // A ruleset may be larger than what a socket is given by default.
        setsockopt(&self.socket, sockopt::SndBufForce, &(2 * bytes.len()))?;
        self.socket.send(&bytes, 0)?;
        Ok(number)
    }

    pub(super) fn receive<T: NetlinkDeserializable>(&mut self) -> io::Result<Vec<NetlinkPayload<T>>> {
        Ok(self.receive_numbered()?.into_iter().map(|(_, payload)| payload).collect())
    }

    /// The same with the number of the message that each is an answer to.
    pub(super) fn receive_numbered<T: NetlinkDeserializable>(
        &mut self,
    ) -> io::Result<Vec<(u32, NetlinkPayload<T>)>> {
        let len = self.socket.recv(&mut &mut self.buffer[..], 0)?;
        let mut rest = self.buffer.get(..len).unwrap_or_default();
        let mut payloads = Vec::new();
        while !rest.is_empty() {
            let message = NetlinkMessage::<T>::deserialize(rest).map_err(io::Error::other)?;
            let taken = (message.header.length as usize).next_multiple_of(ALIGNMENT).max(ALIGNMENT);
            rest = rest.get(taken..).unwrap_or_default();
            payloads.push((message.header.sequence_number, message.payload));
        }
        Ok(payloads)
    }
}

fn serialize<T: NetlinkSerializable>(number: u32, flags: u16, payload: NetlinkPayload<T>) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    (header.sequence_number, header.flags) = (number, flags);
    let mut message = NetlinkMessage::new(header, payload);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// A message whose bytes after the header nobody has read.
pub(super) struct RawMessage {
    pub(super) kind: u16,
    pub(super) bytes: Vec<u8>,
}

impl NetlinkSerializable for RawMessage {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for RawMessage {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self { kind: header.message_type, bytes: payload.to_vec() })
    }
}
