//! The server's name in a TLS client's first message, for routing by it (SNI, RFC 6066 section 3).
//! TLS does not end here: the bytes are peeked at and go on as they are, with the names of
//! protocols (ALPN) that they offer.
//!
//! The message is read by rustls, so one that is cut into records, or carries what nobody has heard
//! of, is read as a server would. No cipher is compiled in, and no key is ever known here.

use rustls::server::Acceptor;

/// The longest first message that is waited for, bytes. With keys for algorithms that hold out against
/// quantum computers, browsers send about 2 KiB; rustls itself takes up to 64 KiB of handshake.
pub(crate) const MAX_HELLO: usize = 16 * 1024;

/// What the bytes at the start of a connection turn out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// A client's first message, and the name in it, in lower case.
    Named(String),
    /// A client's first message without a name.
    Nameless,
    /// So far it could be one; more bytes are needed.
    Incomplete,
    /// It is none.
    NotTls,
}

/// Looks at the first bytes of a connection.
pub(crate) fn read(bytes: &[u8]) -> Hello {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    // A slice is read without fail, in steps of the reader's choice.
    while matches!(acceptor.read_tls(&mut rest), Ok(1..)) {
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(str::to_ascii_lowercase);
                return name.map_or(Hello::Nameless, Hello::Named);
            }
            Err(_) => return Hello::NotTls,
        }
    }
    if bytes.len() < MAX_HELLO { Hello::Incomplete } else { Hello::NotTls }
}

/// Whether `name` is one of those that `pattern` stands for: the same, or, for `*.DOMAIN`, one with
/// a single label before that domain, as in certificates (RFC 6125 section 6.4.3). Both in lower case.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(domain) => {
            name.split_once('.').is_some_and(|(first, rest)| !first.is_empty() && rest == domain)
        }
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A ClientHello (RFC 8446 section 4.1.2) with these extensions, cut into records of at most
    /// `record` bytes.
    fn hello(extensions: &[(u16, Vec<u8>)], record: usize) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]); // random
        body.extend([0]); // no session
        body.extend([0, 2, 0x13, 1]); // TLS_AES_128_GCM_SHA256
        body.extend([1, 0]); // no compression
        let all: Vec<u8> =
            extensions.iter().flat_map(|(kind, data)| extension(*kind, data)).collect();
        body.extend(prefixed(&all));
        let mut message = vec![1, 0];
        message.extend(prefixed(&body));
        let records = message.chunks(record).flat_map(|part| {
            let mut bytes = vec![22, 3, 1];
            bytes.extend(prefixed(part));
            bytes
        });
        records.collect()
    }

    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &prefixed(data)].concat()
    }

    fn prefixed(data: &[u8]) -> Vec<u8> {
        [&(data.len() as u16).to_be_bytes()[..], data].concat()
    }

    fn name(name: &str) -> (u16, Vec<u8>) {
        (0, prefixed(&[&[0][..], &prefixed(name.as_bytes())].concat()))
    }

    fn algorithms() -> (u16, Vec<u8>) {
        (13, prefixed(&[4, 3]))
    }

    /// One of those that are there to keep others from relying on what they know (RFC 8701).
    fn grease() -> (u16, Vec<u8>) {
        (0x2a2a, vec![1, 2, 3])
    }

    #[test]
    fn a_name_is_read_whatever_else_is_said_and_however_it_is_cut() {
        for record in [1, 7, 40, 1 << 14] {
            for extensions in [
                vec![name("Example.COM"), algorithms()],
                vec![grease(), algorithms(), name("example.com")],
                // 2 KiB of something, as keys of today are.
                vec![(51, vec![0; 2048]), algorithms(), name("example.com")].split_off(1),
            ] {
                let bytes = hello(&extensions, record);
                assert_eq!(read(&bytes), Hello::Named("example.com".into()), "{record}");
                for end in 0..bytes.len() {
                    assert_eq!(read(&bytes[..end]), Hello::Incomplete, "{record}, {end}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_name_or_is_no_tls_is_told_apart() {
        assert_eq!(read(&hello(&[algorithms()], 1 << 14)), Hello::Nameless);
        for other in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"SSH-2.0-x\r\n",
            &[0x80, 0x2e, 1, 0, 2],
            &[22, 3, 1, 0, 0],
        ] {
            assert_eq!(read(other), Hello::NotTls, "{other:?}");
        }
        let endless = [&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..], &[0; MAX_HELLO]].concat();
        assert_eq!(read(&endless), Hello::NotTls);
    }

    #[test]
    fn a_pattern_stands_for_one_label() {
        for (pattern, given, expected) in [
            ("a.example", "a.example", true),
            ("a.example", "b.a.example", false),
            ("*.example", "a.example", true),
            ("*.example", "example", false),
            ("*.example", ".example", false),
            ("*.example", "b.a.example", false),
        ] {
            assert_eq!(matches(pattern, given), expected, "{pattern}, {given}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0..120_usize,
        ) {
            let _ = read(&bytes);
            let mut changed = hello(&[name("example.com"), algorithms()], 1 << 14);
            for (place, byte) in changed.iter_mut().skip(at).zip(&bytes) {
                *place = *byte;
            }
            let _ = read(&changed);
        }
    }
}
