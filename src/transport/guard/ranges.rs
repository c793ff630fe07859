//! Which addresses the public internet reaches.
//!
//! After IANA's registries of special-purpose addresses (RFC 6890 and its successors). For IPv6 the list is of
//! what is allowed: global unicast, without what is set apart in it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether the public internet reaches `ip`. An IPv6 address that stands for an IPv4 address (mapped, NAT64,
/// 6to4, ISATAP) is what that address is.
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

/// First address and prefix length of what is not public.
const SPECIAL_V4: [(Ipv4Addr, u32); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),       // this host, this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),      // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),   // shared by a carrier's customers
    (Ipv4Addr::new(127, 0, 0, 0), 8),     // loopback
    (Ipv4Addr::new(169, 254, 0, 0), 16),  // link-local, with the clouds' metadata services
    (Ipv4Addr::new(172, 16, 0, 0), 12),   // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),    // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),    // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),  // 6to4 relays, deprecated
    (Ipv4Addr::new(192, 168, 0, 0), 16),  // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),   // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24), // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),  // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),     // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),     // reserved, and broadcast
];

fn is_public_v4(ip: Ipv4Addr) -> bool {
    !SPECIAL_V4.iter().any(|(net, length)| (ip.to_bits() ^ net.to_bits()).leading_zeros() >= *length)
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let embedded =
        |high: u16, low: u16| is_public_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    match (a, b) {
        (0, 0) if (c, d, e, f) == (0, 0, 0, 0xffff) => embedded(g, h), // mapped
        (0x64, 0xff9b) if (c, d, e, f) == (0, 0, 0, 0) => embedded(g, h), // NAT64
        (0x2002, _) => embedded(b, c),                                 // 6to4
        (0x2001, ..0x200) => false,                                    // protocol assignments, with Teredo
        (0x2001, 0xdb8) => false,                                      // documentation
        (0x3fff, ..0x1000) => false,                                   // documentation
        (0x5f00, _) => false,                                          // segment routing
        (0x2000..=0x3fff, _) if matches!((e, f), (0 | 0x200, 0x5efe)) => embedded(g, h), // ISATAP
        (0x2000..=0x3fff, _) => true,
        _ => false, // unspecified, loopback, compatible, unique local, link-local, site-local, multicast, unassigned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public(ip: &str) -> bool {
        is_public(ip.parse().unwrap())
    }

    #[test]
    fn what_is_not_public() {
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::8.8.8.8",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::127.0.0.1",
            "64:ff9b:1::1",
            "2002:a00:1::1",
            "2002:a9fe:a9fe::",
            "2001::1",
            "2001:0:53aa:64c:0:fffe:f5ff:fffe",
            "2001:10::1",
            "2001:db8::1",
            "3fff:1::1",
            "5f00::1",
            "100::1",
            "fc00::1",
            "fd12:3456::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2606:4700::5efe:10.0.0.1",
            "2606:4700::200:5efe:7f00:1",
        ] {
            assert!(!public(ip), "{ip}");
        }
    }

    #[test]
    fn what_is_public() {
        for ip in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2606:4700::1111",
            "2a00:1450::1",
        ] {
            assert!(public(ip), "{ip}");
        }
    }
}
