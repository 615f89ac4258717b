//! Any bytes at the start of a connection are a header, the beginning of one, or none; it stays
//! so as more arrive; and a header that is written again says the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use relay::proxy::{MOST_NEEDED, Parsed, parse, write, write_v1};

/// The longest header there can be: the fixed part and a 16-bit length.
const MAX_HEADER: usize = 16 + u16::MAX as usize;

fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes);
    match whole {
        Parsed::Header(header) => {
            assert!(header.length <= MAX_HEADER);
            // What follows a header, or its addresses, does not change it.
            assert_eq!(parse(&bytes[..bytes.len().min(header.length)]), whole);
            assert_eq!(parse(&bytes[..bytes.len().min(MOST_NEEDED)]), whole);
            let canonical = |(from, to): (std::net::SocketAddr, std::net::SocketAddr)| {
                [from, to].map(|addr| (addr.ip().to_canonical(), addr.port()))
            };
            for written in [write(header.addresses), write_v1(header.addresses)] {
                let Parsed::Header(again) = parse(&written) else {
                    panic!("what was written is not read back");
                };
                assert_eq!(again.addresses.map(canonical), header.addresses.map(canonical));
            }
        }
        // More bytes may make it a header: none of those that are there may rule it out.
        Parsed::Incomplete => {
            assert!(bytes.len() < MOST_NEEDED);
            for end in 0..bytes.len().min(64) {
                assert_eq!(parse(&bytes[..end]), Parsed::Incomplete);
            }
        }
        Parsed::Invalid(reason) => {
            assert!(!reason.is_empty());
            let more = [bytes, &[0; 64]].concat();
            assert!(matches!(parse(&more), Parsed::Invalid(_)));
        }
    }
});
