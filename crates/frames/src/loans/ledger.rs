//! What one borrower owes.

use super::TokenRefused;

/// The most lines that a ledger has: a token has as many bits for the line as for its uses.
pub(super) const LINES: u32 = 1 << LINE_BITS;
const LINE_BITS: u32 = 16;

/// No further free line.
const NONE: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    lines: Box<[Line]>,
    /// The line that was struck last, or [`NONE`].
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    /// The frame's number while it is out, else the next free line, or [`NONE`].
    frame: u32,
    /// How often it was entered and struck, modulo 2^16: odd while the frame is out.
    uses: u16,
}

impl Line {
    fn is_out(self) -> bool {
        self.uses % 2 == 1
    }
}

impl Ledger {
    pub(super) fn new(quota: u32) -> Self {
        let next = (1..quota).chain([NONE]);
        let lines = next.map(|frame| Line { frame, uses: 0 }).take(quota as usize).collect();
        Self { lines, free: if quota == 0 { NONE } else { 0 } }
    }

    /// Enters a frame; its token.
    ///
    /// # Panics
    /// If there is no free line.
    #[inline]
    pub(super) fn enter(&mut self, frame: u32) -> u32 {
        let at = self.free;
        let line = &mut self.lines[at as usize];
        self.free = line.frame;
        *line = Line { frame, uses: line.uses.wrapping_add(1) };
        u32::from(line.uses) << LINE_BITS | at
    }

    /// Strikes the line of a token out; the number of the frame.
    #[inline]
    pub(super) fn strike(&mut self, token: u32) -> Result<u32, TokenRefused> {
        let (at, uses) = (token % LINES, (token >> LINE_BITS) as u16);
        let line = self.lines.get_mut(at as usize).ok_or(TokenRefused::OutOfRange)?;
        if line.uses != uses || !line.is_out() {
            return Err(TokenRefused::NotOut);
        }
        let frame = line.frame;
        *line = Line { frame: self.free, uses: uses.wrapping_add(1) };
        self.free = at;
        Ok(frame)
    }

    pub(super) fn into_frames(self) -> impl Iterator<Item = u32> {
        self.lines.into_iter().filter(|line| line.is_out()).map(|line| line.frame)
    }
}
