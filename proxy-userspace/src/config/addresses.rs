//! Addresses and prefixes as kube-proxy reads them: leading zeros of an IPv4 octet are
//! decimal, as in configurations older than stricter parsers.

use std::{borrow::Cow, net::IpAddr};

use ipnet::IpNet;

/// Reads an address.
pub(super) fn ip(text: &str) -> Option<IpAddr> {
    without_leading_zeros(text).parse().ok()
}

/// Reads a prefix, and clears the bits after it.
pub(super) fn cidr(text: &str) -> Option<IpNet> {
    without_leading_zeros(text).parse::<IpNet>().ok().map(|cidr| cidr.trunc())
}

fn without_leading_zeros(text: &str) -> Cow<'_, str> {
    let (address, rest) = text.split_at(text.find('/').unwrap_or(text.len()));
    if address.contains(':') || !address.split('.').any(|octet| octet.starts_with('0')) {
        return text.into();
    }
    let octet = |octet: &str| match octet.trim_start_matches('0') {
        "" => octet.get(..1).unwrap_or_default().to_owned(),
        rest => rest.to_owned(),
    };
    let octets: Vec<_> = address.split('.').map(octet).collect();
    format!("{}{rest}", octets.join(".")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_decimal() {
        for (text, expected) in [
            ("0.0.0.0", Some("0.0.0.0")),
            ("010.000.00.041", Some("10.0.0.41")),
            ("fd00::0001", Some("fd00::1")),
            ("10..0.1", None),
            ("10.0.0.1:80", None),
            ("", None),
        ] {
            assert_eq!(ip(text), expected.map(|e| e.parse().unwrap()), "{text}");
        }
        assert_eq!(cidr("010.1.2.3/8"), Some("10.0.0.0/8".parse().unwrap()));
        assert_eq!(cidr("fd00:10::1/32"), Some("fd00:10::/32".parse().unwrap()));
        assert_eq!((cidr("10.0.0.0"), cidr("10.0.0.0/33")), (None, None));
    }
}
