//! CPU masks as the kernel's files have them: hexadecimal, in groups of 32 CPUs.

use lanes::CpuSet;

/// The CPUs of a mask such as `00000001,0000000f`; none if it is no mask, or has CPUs above
/// [`CpuSet::MAX`].
pub(crate) fn parse(text: &str) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for (group, digits) in text.trim().split(',').rev().enumerate() {
        let bits = u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() <= 8)?;
        for bit in (0..32).filter(|bit| bits >> bit & 1 == 1) {
            let cpu = group * 32 + bit;
            if cpu > CpuSet::MAX {
                return None;
            }
            set.insert(cpu);
        }
    }
    Some(set)
}

/// The mask of these CPUs, without leading zeros.
pub(crate) fn of(cpus: &CpuSet) -> String {
    let groups = cpus.iter().last().unwrap_or(0) / 32;
    let bits = |group: usize| {
        let of_group = cpus.iter().filter(|cpu| cpu / 32 == group);
        of_group.fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32))
    };
    let text = |group| match group {
        group if group == groups => format!("{:x}", bits(group)),
        group => format!("{:08x}", bits(group)),
    };
    (0..=groups).rev().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_and_written_as_the_kernel_does() {
        for (mask, cpus, short) in [
            ("0", "", "0"),
            ("00000000,00000000", "", "0"),
            ("f", "0-3", "f"),
            ("00000001,0000000f\n", "0-3,32", "1,0000000f"),
            ("80000000,00000000,00000000", "95", "80000000,00000000,00000000"),
        ] {
            let set = parse(mask).expect(mask);
            assert_eq!((set.to_string().as_str(), of(&set).as_str()), (cpus, short), "{mask}");
        }
        let too_many = format!("1{}", ",00000000".repeat(32));
        for wrong in ["", "x", "fffffffff", ",", "-1", &too_many] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
