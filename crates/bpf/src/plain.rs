//! Values that are their bytes.
#![allow(unsafe_code)]

use std::{mem, ptr, slice};

/// A type whose values are their bytes: what is in maps, and what programs are run with.
///
/// The build script implements it for the generated structs of which it holds.
///
/// # Safety
/// Any bytes make a value, and a value has no padding.
pub unsafe trait Plain: Copy {
    /// The value of which every byte is 0.
    fn zeroed() -> Self {
        // SAFETY: any bytes make a value, as the trait says.
        unsafe { mem::zeroed() }
    }

    /// The value that these bytes make; none if they are too few. More are ignored: the kernel
    /// rounds up the values of maps that have one for each CPU.
    fn read(bytes: &[u8]) -> Option<Self> {
        // SAFETY: there are enough bytes, any make a value, and the read asks for no alignment.
        (bytes.len() >= size_of::<Self>())
            .then(|| unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) })
    }

    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: without padding every byte is initialised; the slice lives no longer than the
        // borrow.
        unsafe { slice::from_raw_parts(ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

// SAFETY: numbers have no padding, and any bytes make one.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: arrays have no padding between their elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_their_bytes() {
        let value = [1_u32, 2, 3];
        assert_eq!(Plain::read(value.bytes()), Some(value));
        assert_eq!(<[u32; 3]>::read(&value.bytes()[..11]), None);
        assert_eq!(u32::read(&[value.bytes(), &[7]].concat()), Some(1));
        assert_eq!(<[u64; 2]>::zeroed(), [0, 0]);
    }
}
