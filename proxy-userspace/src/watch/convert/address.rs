//! Addresses and prefixes as Kubernetes reads them.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::Rejected;

/// Reads an address. Leading zeros in an IPv4 address are decimal, as they are for
/// Kubernetes in objects that are older than its stricter parser; IPv4 written as IPv6 is IPv4.
pub(super) fn parse(field: impl Fn() -> String, text: &str) -> Result<IpAddr, Rejected> {
    let parsed = text.parse::<IpAddr>().ok().or_else(|| with_leading_zeros(text).map(IpAddr::V4));
    match parsed {
        Some(addr) => Ok(addr.to_canonical()),
        None => Err(Rejected::NotAnAddress { field: field(), value: text.to_owned() }),
    }
}

/// Reads an address that other hosts send packets to.
pub(super) fn parse_reachable(field: impl Fn() -> String, text: &str) -> Result<IpAddr, Rejected> {
    let addr = parse(&field, text)?;
    if addr.is_unspecified() || addr.is_loopback() || addr.is_multicast() {
        return Err(Rejected::SpecialAddress { field: field(), value: addr });
    }
    Ok(addr)
}

/// Reads the address of an endpoint, which the API wants to be more than link-local.
pub(super) fn parse_endpoint(field: impl Fn() -> String, text: &str) -> Result<IpAddr, Rejected> {
    let addr = parse_reachable(&field, text)?;
    let link_local = match addr {
        IpAddr::V4(addr) => addr.is_link_local(),
        IpAddr::V6(addr) => addr.is_unicast_link_local(),
    };
    if link_local {
        return Err(Rejected::SpecialAddress { field: field(), value: addr });
    }
    Ok(addr)
}

/// Reads a prefix. Bits after the prefix are cleared.
pub(super) fn parse_net(field: impl Fn() -> String, text: &str) -> Result<IpNet, Rejected> {
    let error = || Rejected::NotACidr { field: field(), value: text.to_owned() };
    // Users leave blanks in source ranges, and kube-proxy has always forgiven them.
    let (addr, bits) = text.trim().split_once('/').ok_or_else(error)?;
    let addr = parse(&field, addr).map_err(|_| error())?;
    let digits = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
    let bits = bits.parse().ok().filter(|_| digits).ok_or_else(error)?;
    Ok(IpNet::new(addr, bits).map_err(|_| error())?.trunc())
}

fn with_leading_zeros(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let plain = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        *octet = part.parse().ok().filter(|_| plain)?;
    }
    parts.next().is_none().then(|| octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field() -> String {
        "f".into()
    }

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1"),
            ("010.000.0.041", "10.0.0.41"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("fd00::1", "fd00::1"),
        ] {
            assert_eq!(parse(field, text), Ok(expected.parse().unwrap()), "{text}");
        }
        for text in
            ["", "10.0.0", "10.0.0.0.1", "10.0.0.256", "+1.0.0.1", "a.b.c.d", "10.0.0.1:80", "fd00::x"]
        {
            assert!(parse(field, text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_nobody_can_reach() {
        for text in ["0.0.0.0", "127.0.0.1", "::", "::1", "224.0.0.1", "ff02::1"] {
            assert!(parse_reachable(field, text).is_err(), "{text}");
        }
        assert!(parse_reachable(field, "169.254.20.10").is_ok());
        assert!(parse_endpoint(field, "169.254.20.10").is_err());
        assert!(parse_endpoint(field, "fe80::1").is_err());
    }

    #[test]
    fn prefixes() {
        for (text, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            (" 203.0.113.000/025 ", "203.0.113.0/25"),
            ("fd00::/64", "fd00::/64"),
        ] {
            assert_eq!(parse_net(field, text), Ok(expected.parse().unwrap()), "{text}");
        }
        for text in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "/8", "fd00::/129"] {
            assert!(parse_net(field, text).is_err(), "{text}");
        }
    }
}
