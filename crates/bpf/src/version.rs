//! Which libbpf this is.
#![allow(unsafe_code)]

/// The major and the minor version of the libbpf that this program runs with.
pub fn libbpf_version() -> (u32, u32) {
    // SAFETY: these take nothing and return numbers that are compiled in.
    unsafe { (libbpf_sys::libbpf_major_version(), libbpf_sys::libbpf_minor_version()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_one_that_libbpf_rs_is_made_for() {
        assert!(super::libbpf_version() >= (1, 7));
    }
}
