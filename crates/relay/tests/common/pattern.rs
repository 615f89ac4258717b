//! Bytes that look random, cost nothing to make, and can be checked from any offset on.

use std::sync::LazyLock;

/// The longest piece that can be asked for at once.
pub const LONGEST: usize = 512 * 1024;

/// The period: a prime, so that no power of two or page size divides a shift that goes unseen.
const PERIOD: usize = 1_048_583;

static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut rng = Rng::new(1);
    let mut table: Vec<u8> = std::iter::repeat_with(|| rng.next().to_le_bytes())
        .take(PERIOD / 8 + 1)
        .flatten()
        .collect();
    table.truncate(PERIOD);
    table.extend_from_within(..LONGEST);
    table
});

/// One stream's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    start: u64,
}

impl Pattern {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Pattern {
        Pattern { start: Rng::new(seed).next() % PERIOD as u64 }
    }

    /// `length` bytes from `offset` on.
    pub fn at(self, offset: u64, length: usize) -> &'static [u8] {
        let from = ((self.start + offset) % PERIOD as u64) as usize;
        &TABLE[from..from + length]
    }

    /// Panics where `bytes` are not the stream's from `offset` on.
    #[track_caller]
    pub fn check(self, offset: u64, bytes: &[u8]) {
        self.verify(offset, bytes).unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    /// Says where `bytes` are not the stream's from `offset` on.
    pub fn verify(self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let expected = self.at(offset, bytes.len());
        if bytes == expected {
            return Ok(());
        }
        let wrong = bytes.iter().zip(expected).position(|(a, b)| a != b).unwrap();
        let here = (self.start + offset + wrong as u64) % PERIOD as u64;
        // Where the bytes belong, if they are of this kind: tells loss from repetition.
        let found = &bytes[wrong..bytes.len().min(wrong + 16)];
        let belongs = TABLE.windows(found.len()).position(|w| w == found);
        let shift = belongs.map(|at| at as i64 - here as i64);
        Err(format!(
            "wrong byte at offset {}, in a read of {} bytes from {offset} on: what is there \
             belongs {shift:?} bytes further on (modulo {PERIOD})",
            offset + wrong as u64,
            bytes.len()
        ))
    }
}

/// A small, fast generator (splitmix64): the same numbers for the same seed, everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A size from 1 to `max`, all orders of magnitude alike.
    pub fn size(&mut self, max: usize) -> usize {
        let bits = usize::BITS - max.leading_zeros();
        let top = 1usize << self.below(u64::from(bits));
        (top + self.below(top as u64) as usize).min(max)
    }
}
