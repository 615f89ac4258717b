//! A set of CPU numbers.

use std::fmt;
use std::str::FromStr;

use crate::scan::{MASK_DIGITS, Scanner};
use crate::{Error, Result};

const WORDS: usize = 16;

/// A set of CPU numbers, 0 to [`CpuSet::MAX`]: a bitmap of 128 bytes without allocation.
///
/// It reads and prints as the kernel's lists: `0-3,8`. Reading also takes the kernel's stride
/// form, `0-10:2/4` for the first two of every four, blanks around items, and the empty text for
/// the empty set; printing gives the shortest ascending list. The kernel's masks, such as
/// `1,0000000f`, are read by [`from_mask`](Self::from_mask) and printed by
/// [`to_mask`](Self::to_mask), because `10` is a list and a mask of different CPUs.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct CpuSet {
    words: [u64; WORDS],
}

impl CpuSet {
    /// The largest CPU number: that of the C library's `cpu_set_t`.
    pub const MAX: usize = WORDS * 64 - 1;

    /// The empty set.
    pub const fn new() -> Self {
        Self { words: [0; WORDS] }
    }

    /// Reads a mask as the kernel prints it: hexadecimal, in groups of 32 CPUs, the last one first.
    /// All groups but the first have eight digits. Blanks may be around it.
    ///
    /// # Errors
    /// [`ErrorKind::Syntax`](crate::ErrorKind::Syntax) for anything else, and for CPUs above
    /// [`CpuSet::MAX`].
    pub fn from_mask(text: &str) -> Result<Self> {
        let mut scanner = Scanner::new("CPU mask", text);
        scanner.skip_blanks();
        let start = scanner.offset();
        let mut groups = vec![scanner.group(1)?];
        while scanner.take(",") {
            groups.push(scanner.group(MASK_DIGITS)?);
        }
        scanner.skip_blanks();
        if !scanner.at_end() {
            return Err(scanner.error("expected \",\" or the end"));
        }
        let mut set = Self::new();
        for (group, bits) in groups.into_iter().rev().enumerate().filter(|(_, bits)| *bits != 0) {
            let Some(word) = set.words.get_mut(group / 2) else {
                let trouble = format_args!("a CPU is past the last possible one, {},", Self::MAX);
                return Err(scanner.error_at(start, trouble));
            };
            *word |= u64::from(bits) << (group % 2 * 32);
        }
        Ok(set)
    }

    /// The mask of these CPUs as the kernel reads it, without leading zeros.
    pub fn to_mask(&self) -> String {
        let words = self.words.iter().rev();
        let groups: Vec<u32> = words.flat_map(|word| [(word >> 32) as u32, *word as u32]).collect();
        let first = groups.iter().position(|bits| *bits != 0).unwrap_or(groups.len() - 1);
        let rest = groups[first + 1..].iter().map(|bits| format!(",{bits:08x}"));
        format!("{:x}", groups[first]) + &rest.collect::<String>()
    }

    /// Adds a CPU; true if it was not there yet.
    ///
    /// # Panics
    /// If `cpu` is above [`CpuSet::MAX`].
    pub fn insert(&mut self, cpu: usize) -> bool {
        assert!(cpu <= Self::MAX, "cpu {cpu} is above {}", Self::MAX);
        let added = !self.contains(cpu);
        self.words[cpu / 64] |= 1 << (cpu % 64);
        added
    }

    /// Takes a CPU out; true if it was there.
    pub fn remove(&mut self, cpu: usize) -> bool {
        let removed = self.contains(cpu);
        if removed {
            self.words[cpu / 64] &= !(1 << (cpu % 64));
        }
        removed
    }

    /// Whether a CPU is in the set; false for numbers above [`CpuSet::MAX`].
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set has no CPU.
    pub fn is_empty(&self) -> bool {
        self.words == [0; WORDS]
    }

    /// The lowest CPU.
    pub fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            // Clearing the lowest set bit at each step visits only the CPUs that are there.
            std::iter::successors((word != 0).then_some(word), |rest| {
                let rest = rest & (rest - 1);
                (rest != 0).then_some(rest)
            })
            .map(move |rest| index * 64 + rest.trailing_zeros() as usize)
        })
    }

    /// The CPUs that are in either set.
    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    /// The CPUs that are in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// The CPUs of this set that are not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    fn zip(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        Self { words: std::array::from_fn(|i| op(self.words[i], other.words[i])) }
    }
}

impl FromIterator<usize> for CpuSet {
    /// # Panics
    /// If a number is above [`CpuSet::MAX`].
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl Extend<usize> for CpuSet {
    /// # Panics
    /// If a number is above [`CpuSet::MAX`].
    fn extend<I: IntoIterator<Item = usize>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

impl FromStr for CpuSet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut scanner = Scanner::new("CPU set", text);
        let mut set = Self::new();
        scanner.skip_blanks();
        if !scanner.at_end() {
            scanner.list(|scanner| {
                set.extend(scanner.cpus()?.iter());
                Ok(())
            })?;
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<usize> = self.iter().collect();
        let ranges = cpus.chunk_by(|a, b| a + 1 == *b).map(|range| match range {
            [first, .., last] => format!("{first}-{last}"),
            range => format!("{}", range[0]),
        });
        f.pad(&ranges.collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_the_kernels_lists() {
        for (text, cpus, printed) in [
            ("", vec![], ""),
            ("\n", vec![], ""),
            ("0", vec![0], "0"),
            ("0-3,8\n", vec![0, 1, 2, 3, 8], "0-3,8"),
            ("8,0-1,1-2", vec![0, 1, 2, 8], "0-2,8"),
            (" 4 , 5 ", vec![4, 5], "4-5"),
            ("0-10:2/4", vec![0, 1, 4, 5, 8, 9], "0-1,4-5,8-9"),
            ("63-64,1023", vec![63, 64, 1023], "63-64,1023"),
        ] {
            let set: CpuSet = text.parse().unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), cpus, "{text:?}");
            assert_eq!(set.to_string(), printed, "{text:?}");
        }
    }

    #[test]
    fn a_bad_list_is_refused_at_the_character() {
        for (text, offset, expected) in [
            ("0-3,x", 4, "CPU set \"0-3,x\": expected a CPU number at character 5"),
            ("0-", 2, "CPU set \"0-\": expected a CPU number at character 3"),
            ("0,", 2, "CPU set \"0,\": expected a CPU number at character 3"),
            ("0 1", 2, "CPU set \"0 1\": expected \",\" or the end at character 3"),
            ("3-1", 2, "CPU set \"3-1\": the range 3-1 runs backwards at character 3"),
            ("é", 0, "CPU set \"é\": expected a CPU number at character 1"),
            ("1,é", 2, "CPU set \"1,é\": expected a CPU number at character 3"),
            ("-1", 0, "CPU set \"-1\": expected a CPU number at character 1"),
        ] {
            let error = text.parse::<CpuSet>().unwrap_err();
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.offset(), Some(offset), "{text:?}");
            assert_eq!(error.kind(), crate::ErrorKind::Syntax);
        }
        for text in
            ["1024", "0-1024", "99999999999999999999999", "0-7:0/4", "0-7:5/4", "0-7:1", "0-7:1/0"]
        {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn masks_are_read_and_printed_as_the_kernel_does() {
        for (mask, cpus, short) in [
            ("0", "", "0"),
            ("00000000,00000000", "", "0"),
            ("f", "0-3", "f"),
            ("F", "0-3", "f"),
            ("10", "4", "10"),
            ("00000001,0000000f\n", "0-3,32", "1,0000000f"),
            ("80000000,00000000,00000000", "95", "80000000,00000000,00000000"),
            (&format!("000,{}80000000", "00000000,".repeat(40)), "31", "80000000"),
            (
                &format!("80000000{}", ",00000000".repeat(31)),
                "1023",
                &format!("80000000{}", ",00000000".repeat(31)),
            ),
        ] {
            let set = CpuSet::from_mask(mask).expect(mask);
            assert_eq!((set.to_string().as_str(), set.to_mask().as_str()), (cpus, short), "{mask}");
        }
        let too_many = format!("1{}", ",00000000".repeat(32));
        for (text, said) in [
            ("", "CPU mask \"\": expected 1 to 8 hexadecimal digits at character 1"),
            ("x", "expected 1 to 8 hexadecimal digits at character 1"),
            ("+f", "expected 1 to 8 hexadecimal digits at character 1"),
            ("fffffffff", "expected 1 to 8 hexadecimal digits at character 1"),
            ("f,", "expected 8 hexadecimal digits at character 3"),
            ("1,2", "expected 8 hexadecimal digits at character 3"),
            ("0-3", "expected \",\" or the end at character 2"),
            ("f f", "expected \",\" or the end at character 3"),
            (&too_many, "a CPU is past the last possible one, 1023, at character 1"),
        ] {
            let error = CpuSet::from_mask(text).unwrap_err();
            assert!(error.to_string().ends_with(said), "{error}");
            assert_eq!(error.kind(), crate::ErrorKind::Syntax);
        }
    }

    #[test]
    fn set_operations_agree_with_the_words() {
        let (a, b): (CpuSet, CpuSet) = ("0-3,100".parse().unwrap(), "2-5".parse().unwrap());
        assert_eq!(a.union(&b).to_string(), "0-5,100");
        assert_eq!(a.intersection(&b).to_string(), "2-3");
        assert_eq!(a.difference(&b).to_string(), "0-1,100");
        let mut c = a.clone();
        assert!(!c.insert(3) && c.insert(4) && c.remove(100) && !c.remove(100) && !c.remove(5000));
        assert_eq!((c.len(), c.first(), c.contains(100_000)), (5, Some(0), false));
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(cpus in prop::collection::btree_set(0..=CpuSet::MAX, 0..200)) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.len(), cpus.len());
            prop_assert_eq!(&set.to_string().parse::<CpuSet>().unwrap(), &set);
            prop_assert_eq!(CpuSet::from_mask(&set.to_mask()).unwrap(), set);
        }

        #[test]
        fn any_text_is_read_or_refused_inside_it(text in "[0-9a-f,:/ é-]{0,24}|.{0,24}") {
            for error in [text.parse::<CpuSet>().err(), CpuSet::from_mask(&text).err()] {
                let Some(error) = error else { continue };
                let offset = error.offset().unwrap();
                prop_assert!(text.is_char_boundary(offset));
            }
        }
    }
}
