//! Maps, with values of a type.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use libbpf_rs::{ErrorKind, MapCore as _, MapFlags, MapHandle, MapImpl};

use crate::Plain;

/// A loaded map, for as long as anybody has it. Keys and values are of whatever type they are in C;
/// one of another size is refused by libbpf.
#[derive(Debug)]
pub struct Map(MapHandle);

impl Map {
    /// The map of a loaded skeleton.
    pub fn of<A: std::fmt::Debug>(map: &MapImpl<'_, A>) -> libbpf_rs::Result<Map> {
        MapHandle::try_from(map).map(Map)
    }

    /// The value of a key; none if the key is not there.
    ///
    /// # Errors
    /// What the system reports, and `InvalidData` if the map has other values.
    pub fn find<T: Plain>(&self, key: &impl Plain) -> io::Result<Option<T>> {
        let found = self.0.lookup(key.bytes(), MapFlags::ANY).map_err(io_error)?;
        found.map(|bytes| value(&bytes)).transpose()
    }

    /// The value of a key that is there.
    ///
    /// # Errors
    /// As [`find`](Map::find), and `NotFound`.
    pub fn get<T: Plain>(&self, key: &impl Plain) -> io::Result<T> {
        self.find(key)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Writes the value of a key.
    pub fn set(&self, key: &impl Plain, value: &impl Plain) -> io::Result<()> {
        self.0.update(key.bytes(), value.bytes(), MapFlags::ANY).map_err(io_error)
    }

    /// Writes the value of a key that is not there.
    ///
    /// # Errors
    /// What the system reports, `AlreadyExists` among it.
    pub fn insert(&self, key: &impl Plain, value: &impl Plain) -> io::Result<()> {
        self.0.update(key.bytes(), value.bytes(), MapFlags::NO_EXIST).map_err(io_error)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// What the system reports, `NotFound` among it.
    pub fn remove(&self, key: &impl Plain) -> io::Result<()> {
        self.0.delete(key.bytes()).map_err(io_error)
    }

    /// A key's values by possible CPU, in their order, of a map that has one for each.
    ///
    /// # Errors
    /// As [`get`](Map::get).
    pub fn per_cpu<T: Plain>(&self, key: &impl Plain) -> io::Result<Vec<T>> {
        let found = self.0.lookup_percpu(key.bytes(), MapFlags::ANY).map_err(io_error)?;
        let found = found.ok_or(io::ErrorKind::NotFound)?;
        found.iter().map(|bytes| value(bytes)).collect()
    }

    /// Writes the same value for each possible CPU.
    pub fn set_per_cpu(&self, key: &impl Plain, value: &impl Plain) -> io::Result<()> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(io_error)?;
        let values = vec![value.bytes().to_vec(); cpus];
        self.0.update_percpu(key.bytes(), &values, MapFlags::ANY).map_err(io_error)
    }

    /// The sum of a key's values over all CPUs, where a value is nothing but counts of 64 bits: each
    /// wraps. What else is in it means nothing in the sum.
    ///
    /// # Errors
    /// As [`get`](Map::get).
    pub fn sum<T: Plain>(&self, key: &impl Plain) -> io::Result<T> {
        sum(&self.per_cpu::<T>(key)?)
    }

    /// Its number.
    pub fn id(&self) -> io::Result<u32> {
        Ok(self.0.info().map_err(io_error)?.info.id)
    }

    /// Bytes of kernel memory that it takes.
    ///
    /// # Errors
    /// What `/proc` reports.
    pub fn memory(&self) -> io::Result<u64> {
        Ok(self.0.query_fdinfo().map_err(io_error)?.memlock.unwrap_or(0))
    }

    /// It as libbpf-rs has it, for ring buffers.
    pub fn handle(&self) -> &MapHandle {
        &self.0
    }
}

impl From<MapHandle> for Map {
    fn from(map: MapHandle) -> Map {
        Map(map)
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn sum<T: Plain>(values: &[T]) -> io::Result<T> {
    let mut sum = vec![0_u64; size_of::<T>().div_ceil(8)];
    for one in values {
        for (sum, word) in sum.iter_mut().zip(one.bytes().chunks_exact(8)) {
            *sum = sum.wrapping_add(u64::read(word).unwrap_or_default());
        }
    }
    let bytes: Vec<u8> = sum.into_iter().flat_map(u64::to_ne_bytes).collect();
    value(&bytes)
}

fn value<T: Plain>(bytes: &[u8]) -> io::Result<T> {
    T::read(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// An error of libbpf-rs as one of the system, with its causes. It keeps its error numbers to itself.
pub fn io_error(error: libbpf_rs::Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::NotFound => io::ErrorKind::NotFound,
        ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
        ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
        ErrorKind::Interrupted => io::ErrorKind::Interrupted,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_cpus_are_added_up_and_wrap() {
        assert_eq!(sum(&[[1, u64::MAX], [2, 2], [3, 0]]).expect("they are counts"), [6, 1]);
        assert_eq!(sum::<[u64; 2]>(&[]).expect("they are counts"), [0, 0]);
    }
}
