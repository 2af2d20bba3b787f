//! Addresses of both families, and the trait that lets everything else be written once.

/// The bytes of an IPv4 address as they stand on the wire.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::derived_hash_with_manual_eq, reason = "both are by all octets")]
pub struct Ip4 {
    /// Most significant byte first.
    pub octets: [u8; 4],
}

/// The bytes of an IPv6 address as they stand on the wire.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::derived_hash_with_manual_eq, reason = "both are by all octets")]
pub struct Ip6 {
    /// Most significant byte first.
    pub octets: [u8; 16],
}

crate::maps::pod!(Ip4, Ip6);

// By words: of arrays of bytes the compiler does not know the alignment, and a program for the kernel
// would read them byte by byte.
impl PartialEq for Ip4 {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.words()[0] == other.words()[0]
    }
}

impl PartialEq for Ip6 {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (self.words(), other.words());
        one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3]
    }
}

/// One address family. Every map layout and every stage of the datapath is generic
/// over it and monomorphised twice.
pub trait Addr: Copy + Eq + Default + 'static {
    /// Length of an address in bits, the longest prefix.
    const BITS: u32;
    /// The IP version number.
    const VERSION: u8;
    /// The address as big-endian 32-bit words, for checksums and comparisons.
    fn words(&self) -> &[u32];
    /// True for 0.0.0.0 and ::, the address under which NodePorts are stored.
    fn is_unspecified(&self) -> bool {
        *self == Self::default()
    }
    /// True when the first `len` bits equal those of `prefix`.
    fn in_prefix(&self, prefix: &Self, len: u32) -> bool;
    /// True for 127.0.0.0/8 and ::1.
    fn is_loopback(&self) -> bool;
}

impl Addr for Ip4 {
    const BITS: u32 = 32;
    const VERSION: u8 = 4;

    #[inline(always)]
    fn words(&self) -> &[u32] {
        // SAFETY: Ip4 is repr(C, align(4)) and exactly one u32 long; any bits are a valid u32.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), 1) }
    }

    #[inline(always)]
    fn in_prefix(&self, prefix: &Self, len: u32) -> bool {
        let diff = u32::from_be_bytes(self.octets) ^ u32::from_be_bytes(prefix.octets);
        diff & prefix_mask(len) == 0
    }

    #[inline(always)]
    fn is_loopback(&self) -> bool {
        self.octets[0] == 127
    }
}

impl Addr for Ip6 {
    const BITS: u32 = 128;
    const VERSION: u8 = 6;

    #[inline(always)]
    fn words(&self) -> &[u32] {
        // SAFETY: Ip6 is repr(C, align(4)) and exactly four u32 long; any bits are valid u32s.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), 4) }
    }

    #[inline(always)]
    fn in_prefix(&self, prefix: &Self, len: u32) -> bool {
        let (a, b) = (self.words(), prefix.words());
        let mut left = len;
        let mut i = 0;
        while i < 4 {
            let bits = if left > 32 { 32 } else { left };
            if u32::from_be(a[i] ^ b[i]) & prefix_mask(bits) != 0 {
                return false;
            }
            left -= bits;
            i += 1;
        }
        true
    }

    #[inline(always)]
    fn is_loopback(&self) -> bool {
        let w = self.words();
        w[0] == 0 && w[1] == 0 && w[2] == 0 && w[3] == 1u32.to_be()
    }
}

/// The mask of the `len` most significant of 32 bits; `len` above 32 counts as 32.
#[inline(always)]
fn prefix_mask(len: u32) -> u32 {
    if len == 0 {
        0
    } else if len >= 32 {
        u32::MAX
    } else {
        !(u32::MAX >> len)
    }
}

impl From<[u8; 4]> for Ip4 {
    fn from(octets: [u8; 4]) -> Self {
        Self { octets }
    }
}

impl From<[u8; 16]> for Ip6 {
    fn from(octets: [u8; 16]) -> Self {
        Self { octets }
    }
}

impl From<core::net::Ipv4Addr> for Ip4 {
    fn from(addr: core::net::Ipv4Addr) -> Self {
        Self { octets: addr.octets() }
    }
}

impl From<core::net::Ipv6Addr> for Ip6 {
    fn from(addr: core::net::Ipv6Addr) -> Self {
        Self { octets: addr.octets() }
    }
}

impl From<Ip4> for core::net::IpAddr {
    fn from(addr: Ip4) -> Self {
        core::net::Ipv4Addr::from(addr.octets).into()
    }
}

impl From<Ip6> for core::net::IpAddr {
    fn from(addr: Ip6) -> Self {
        core::net::Ipv6Addr::from(addr.octets).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_both_families() {
        let a = Ip4::from([10, 1, 2, 3]);
        assert!(a.in_prefix(&[10, 0, 0, 0].into(), 8));
        assert!(!a.in_prefix(&[10, 0, 0, 0].into(), 16));
        assert!(a.in_prefix(&[0; 4].into(), 0));
        assert!(a.in_prefix(&a, 32));
        let mut b = [0u8; 16];
        b[0] = 0xfd;
        b[5] = 0x10;
        let six = Ip6::from(b);
        b[5] = 0x1f;
        assert!(six.in_prefix(&b.into(), 44));
        assert!(!six.in_prefix(&b.into(), 45));
        assert!(six.in_prefix(&six, 128));
        assert!(!six.in_prefix(&Ip6::default(), 1));
    }

    #[test]
    fn loopback() {
        assert!(Ip4::from([127, 9, 0, 1]).is_loopback());
        assert!(!Ip4::from([128, 0, 0, 1]).is_loopback());
        assert!(Ip6::from(core::net::Ipv6Addr::LOCALHOST.octets()).is_loopback());
        assert!(!Ip6::default().is_loopback());
    }
}
