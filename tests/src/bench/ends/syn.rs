//! The first packet of a TCP connection, from any address: made once for a destination and changed
//! for each packet, checksum included.

use std::net::SocketAddrV4;

/// Bytes of an IPv4 and a TCP header without options.
pub(super) const LENGTH: usize = 40;

const TTL: u8 = 64;
const TCP: u8 = 6;
const DATA_OFFSET: u8 = 5 << 4;
const SYN: u8 = 2;
const WINDOW: u16 = 64_000;
const TCP_LENGTH: u16 = 20;

/// What all packets to one destination have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    bytes: [u8; LENGTH],
    /// Sum of the 16-bit words that the TCP checksum covers and that stay the same.
    sum: u32,
}

impl Template {
    pub(super) fn new(to: SocketAddrV4) -> Self {
        let mut bytes = [0; LENGTH];
        // The kernel fills in the total length and the checksum of the IPv4 header (raw(7)).
        bytes[0] = 0x45;
        bytes[8] = TTL;
        bytes[9] = TCP;
        bytes[16..20].copy_from_slice(&to.ip().octets());
        bytes[22..24].copy_from_slice(&to.port().to_be_bytes());
        bytes[32] = DATA_OFFSET;
        bytes[33] = SYN;
        bytes[34..36].copy_from_slice(&WINDOW.to_be_bytes());
        let words = bytes[16..].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        Self { bytes, sum: words.sum::<u32>() + u32::from(TCP) + u32::from(TCP_LENGTH) }
    }

    /// The packet from this address and port, with this sequence number.
    pub(super) fn from(&self, address: u32, port: u16, sequence: u32) -> [u8; LENGTH] {
        let mut bytes = self.bytes;
        bytes[12..16].copy_from_slice(&address.to_be_bytes());
        bytes[20..22].copy_from_slice(&port.to_be_bytes());
        bytes[24..28].copy_from_slice(&sequence.to_be_bytes());
        let sum = self.sum + halves(address) + u32::from(port) + halves(sequence);
        bytes[36..38].copy_from_slice(&(!folded(sum)).to_be_bytes());
        bytes
    }
}

fn halves(word: u32) -> u32 {
    (word >> 16) + (word & 0xffff)
}

/// Carries are added at the low end, which may carry once more.
fn folded(sum: u32) -> u16 {
    halves(halves(sum)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::SlicedPacket;
    use std::net::Ipv4Addr;

    #[test]
    fn the_checksum_fits_whatever_the_packet_says() {
        let template = Template::new(SocketAddrV4::new(Ipv4Addr::new(10, 244, 2, 100), 7080));
        for (address, port, sequence) in
            [(0xc612_0001, 1024, 1), (0xc613_ffff, 65_535, u32::MAX), (0xc612_8000, 7, 0x8000_ffff)]
        {
            let mut bytes = template.from(address, port, sequence);
            bytes[2..4].copy_from_slice(&(LENGTH as u16).to_be_bytes());
            let packet = SlicedPacket::from_ip(&bytes).expect("a packet");
            let (Some(etherparse::NetSlice::Ipv4(ip)), Some(etherparse::TransportSlice::Tcp(tcp))) =
                (packet.net, packet.transport)
            else {
                panic!("no TCP in IPv4")
            };
            let header = tcp.to_header();
            assert_eq!(ip.header().source_addr(), Ipv4Addr::from_bits(address));
            assert_eq!((header.source_port, header.destination_port), (port, 7080));
            assert!(header.syn && !header.ack && header.sequence_number == sequence);
            let sum = header.calc_checksum_ipv4(&ip.header().to_header(), &[]);
            assert_eq!(sum, Ok(header.checksum));
        }
    }
}
