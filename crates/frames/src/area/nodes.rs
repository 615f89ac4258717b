//! On which NUMA node the memory of each home is.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use super::{AreaOptions, page_frames};
use crate::homes::Cut;
use crate::{Error, ErrorKind};

/// The kernel knows no more nodes.
const MOST_NODES: usize = 1024;
/// Nodes of a word of a set of nodes.
const WORD: usize = usize::BITS as usize;

/// Asks the kernel for memory of each home's node, before there is any; says the first refusal.
/// A node that is full gives what it has, and other nodes the rest. `memory` is mapped, in pages of
/// `page` bytes.
pub(super) fn place(memory: NonNull<[u8]>, page: usize, options: &AreaOptions) -> Option<Error> {
    let ranges = ranges(memory.len(), page, options);
    let wanted = options.nodes.iter().zip(ranges).enumerate();
    let mut refused = wanted.filter_map(|(home, (node, range))| {
        let node = (*node)?;
        let error = prefer(memory, range, node).err()?;
        let message = format!("cannot put the memory of home {home} on node {node}");
        Some(Error::caused(ErrorKind::Memory, message, error))
    });
    let first = refused.next();
    // The others are asked for all the same.
    refused.for_each(drop);
    first
}

/// The bytes of each home's pages. A page in which several homes are is the first one's.
fn ranges(mapped: usize, page: usize, options: &AreaOptions) -> Vec<Range<usize>> {
    let &AreaOptions { frames, frame_size, ref nodes, .. } = options;
    let homes = nodes.len() as u32;
    let border = |frame: u32| {
        let byte = frame as usize * frame_size as usize;
        if frame == frames { mapped } else { byte.next_multiple_of(page).min(mapped) }
    };
    let range = |home| {
        let cut = Cut::new(frames, homes, page_frames(page, frame_size));
        let (start, count) = cut.range(home);
        border(start)..border(start + count)
    };
    (0..homes).map(range).collect()
}

fn prefer(memory: NonNull<[u8]>, range: Range<usize>, node: u32) -> io::Result<()> {
    let node = node as usize;
    if range.is_empty() {
        return Ok(());
    }
    if node >= MOST_NODES {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut nodes = [0_usize; MOST_NODES / WORD];
    nodes[node / WORD] = 1 << (node % WORD);
    // SAFETY: where memory will be changes nothing of what is in it. The kernel reads one node less
    // than it is told.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            memory.cast::<u8>().as_ptr().wrapping_add(range.start),
            range.len(),
            libc::MPOL_PREFERRED as libc::c_ulong,
            nodes.as_ptr(),
            MOST_NODES + 1,
            0_usize,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{FrameArea, FramePool, HugePages, PoolOptions};

    /// Of `get_mempolicy`: the policy of an address; with the first, the node that it is on.
    const MPOL_F_NODE: libc::c_ulong = 1;
    const MPOL_F_ADDR: libc::c_ulong = 2;

    /// What the kernel says of an address: the policy of its memory, and the node that it is on.
    fn told(address: *const u8) -> io::Result<(i32, i32)> {
        let ask = |flags: libc::c_ulong| {
            let mut answer = 0_i32;
            let none = std::ptr::null_mut::<usize>();
            // SAFETY: the kernel writes one number, and to no set of nodes.
            let done = unsafe {
                libc::syscall(libc::SYS_get_mempolicy, &mut answer, none, 0_usize, address, flags)
            };
            if done == 0 { Ok(answer) } else { Err(io::Error::last_os_error()) }
        };
        Ok((ask(MPOL_F_ADDR)?, ask(MPOL_F_ADDR | MPOL_F_NODE)?))
    }

    /// Whether the kernel can be asked; says why not.
    fn can_ask() -> bool {
        let here = 0_u8;
        let told = told(&here);
        if let Err(error) = &told {
            eprintln!("skipped: this kernel lacks NUMA, or may not be asked for it: {error}");
        }
        told.is_ok()
    }

    fn options(huge_pages: HugePages, shared: bool, nodes: &[Option<u32>]) -> AreaOptions {
        // 16 pages of a home.
        let frames = 32 * nodes.len() as u32;
        AreaOptions::default()
            .frames(frames)
            .huge_pages(huge_pages)
            .shared(shared)
            .nodes(nodes.to_vec())
    }

    #[test]
    fn memory_of_a_home_is_asked_for_on_its_node_and_is_there() {
        if !can_ask() {
            return;
        }
        let nodes = [Some(0), None, Some(0)];
        for huge_pages in [HugePages::Never, HugePages::Try] {
            for shared in [false, true] {
                let area = FrameArea::new(&options(huge_pages, shared, &nodes)).unwrap();
                assert!(area.misplaced().is_none(), "{:?}", area.misplaced());
                let homes = PoolOptions::default().homes(vec![0; 3]);
                let pool = FramePool::new(area, &homes).unwrap();
                let caches: Vec<_> = (0..3).map(|home| pool.cache(home).unwrap()).collect();
                let reserved = told_of_reserved(&pool);
                for (home, mut cache) in caches.into_iter().enumerate() {
                    let frame = cache.get().unwrap();
                    let (policy, node) = told(pool.area().bytes(&frame).as_ptr()).unwrap();
                    // A reserved huge page, if the host has one, is all homes': the first one's.
                    let wanted = nodes[home].is_some() || reserved;
                    let expected = if wanted { libc::MPOL_PREFERRED } else { libc::MPOL_DEFAULT };
                    assert_eq!(policy, expected, "home {home}, {huge_pages:?}, shared {shared}");
                    assert!(!wanted || node == 0, "home {home} is on node {node}");
                    cache.put(frame);
                }
            }
        }
    }

    /// Whether all homes are in one huge page.
    fn told_of_reserved(pool: &FramePool) -> bool {
        pool.area().page_frames() as usize * 2048 > 4096
    }

    #[test]
    fn a_node_that_is_not_there_is_said_and_no_error() {
        if !can_ask() {
            return;
        }
        for absent in [1023, 1024, u32::MAX] {
            let nodes = [None, Some(absent), Some(0)];
            let area = FrameArea::new(&options(HugePages::Never, false, &nodes)).unwrap();
            let said = area.misplaced().unwrap().to_string();
            assert!(said.contains(&format!("home 1 on node {absent}")), "{said}");
            // The other home has its node.
            // SAFETY: the last byte of the mapping.
            let last = unsafe { area.as_ptr().add(area.len() - 1) };
            assert_eq!(told(last.as_ptr()).unwrap(), (libc::MPOL_PREFERRED, 0));
        }
    }

    #[test]
    fn nodes_are_of_the_homes_of_the_pool() {
        let area = FrameArea::new(&options(HugePages::Never, false, &[None, None])).unwrap();
        assert_eq!(area.page_frames(), 1, "without a node, nothing is cut at pages");
        let area = || FrameArea::new(&options(HugePages::Never, false, &[None, None])).unwrap();
        let homes = |count| PoolOptions::default().homes(vec![0; count]);
        assert!(FramePool::new(area(), &homes(2)).is_ok());
        let error = FramePool::new(area(), &homes(3)).unwrap_err();
        assert_eq!(error.to_string(), "3 homes in an area with nodes for 2");
        let more = options(HugePages::Never, false, &[None, None]).frames(1);
        assert!(FrameArea::new(&more).is_err());
    }

    #[test]
    fn every_page_is_of_one_home() {
        // 10 homes in two pages; 3 in 7, the last of which is half empty; one for each huge page.
        for (frames, frame_size, homes, page, mapped, pages) in [
            (96, 64, 10, 4096, 8192, vec![1, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
            (13, 2048, 3, 4096, 26_624, vec![2, 2, 3]),
            (2048, 2048, 2, 2 << 20, 4 << 20, vec![1, 1]),
            (1024, 2048, 2, 2 << 20, 2 << 20, vec![1, 0]),
        ] {
            let nodes = vec![Some(0); homes];
            let options = AreaOptions::default().frames(frames).frame_size(frame_size).nodes(nodes);
            let ranges = ranges(mapped, page, &options);
            let of_each: Vec<_> = ranges.iter().map(|range| range.len().div_ceil(page)).collect();
            assert_eq!(of_each, pages, "{ranges:?}");
            assert!(ranges.iter().all(|range| range.start % page == 0 || range.is_empty()));
            assert!(ranges.windows(2).all(|two| two[0].end == two[1].start), "{ranges:?}");
            assert_eq!((ranges[0].start, ranges[homes - 1].end), (0, mapped));
        }
    }
}
