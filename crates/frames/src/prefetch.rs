//! A hint to the CPU.

#![allow(unsafe_code)]

/// Starts to fetch the cache line that `bytes` begin in, without waiting for it: for memory that another
/// CPU wrote, or nobody of late, and that is read soon. For several pieces, one after the other, the CPU
/// waits once and not for each. On processors other than x86-64 and AArch64, it does nothing.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint that reads and writes nothing; every x86-64 processor has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a hint that reads and writes nothing, and cannot fault.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) bytes.as_ptr(), options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = bytes;
}
