//! A source that reads files and picks figures out of their text.

use super::Source;
use super::file::Kept;
use crate::spec::Named;
use crate::{Quantity, Result, Value};

/// Finds a quantity in the files that were just read.
pub(crate) type Pick = Box<dyn Fn(&[Kept]) -> Result<Value> + Send>;

/// Files, and what to pick out of them.
pub(crate) struct Text {
    quantities: Vec<Quantity>,
    files: Vec<Kept>,
    picks: Vec<Pick>,
}

impl Text {
    /// A source of these names, each with its pick.
    pub(crate) fn new(
        files: Vec<Kept>,
        names: &[Named],
        pick: impl FnMut(&Named) -> Result<Pick>,
    ) -> Result<Self> {
        let quantities = names.iter().map(|name| name.known.quantity(name.to_string())).collect();
        let picks = names.iter().map(pick).collect::<Result<_>>()?;
        Ok(Self { quantities, files, picks })
    }
}

impl Source for Text {
    fn quantities(&self) -> &[Quantity] {
        &self.quantities
    }

    fn read(&mut self) -> Result<Vec<Value>> {
        self.files.iter_mut().try_for_each(Kept::read)?;
        self.picks.iter().map(|pick| pick(&self.files)).collect()
    }
}
