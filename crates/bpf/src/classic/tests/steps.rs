//! Filters such as nobody writes.

use libc::sock_filter;
use proptest::prelude::*;

pub(super) fn step(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

const WORDS_USED: u32 = 4;

/// Any step but a jump; none that libpcap and the kernel refuse: shifts by 32 or more, divisions by zero as given.
/// what a filter reads may wrap around, and what it shifts by may be anything.
fn plain_step(tame: bool) -> impl Strategy<Value = Vec<sock_filter>> {
    use libc::*;
    let sizes = prop::sample::select(vec![BPF_W, BPF_H, BPF_B]);
    let at = prop_oneof![8 => 0_u32..90, 1 => 0_u32..70_000, 1 => 0_u32..0x8000_0000];
    let near = prop_oneof![8 => 0_u32..90, 1 => 0_u32..70_000];
    let number = prop_oneof![4 => 0_u32..64, 1 => any::<u32>(), 1 => Just(u32::MAX)];
    let words = 0..WORDS_USED;
    let operations = prop::sample::select(vec![
        BPF_ADD, BPF_SUB, BPF_MUL, BPF_DIV, BPF_MOD, BPF_AND, BPF_OR, BPF_XOR, BPF_LSH, BPF_RSH,
    ]);
    let one = |step: sock_filter| vec![step];
    let absolute =
        (sizes.clone(), at).prop_map(move |(size, k)| one(step(BPF_LD | BPF_ABS | size, 0, 0, k)));
    let behind = (sizes, near, any::<bool>()).prop_map(move |(size, k, bare)| {
        let load = step(BPF_LD | BPF_IND | size, 0, 0, k);
        match tame || !bare {
            true => vec![
                step(BPF_ALU | BPF_AND | BPF_K, 0, 0, 63),
                step(BPF_MISC | BPF_TAX, 0, 0, 0),
                load,
            ],
            false => vec![load],
        }
    });
    let calculation = (operations, any::<bool>(), number.clone());
    let calculation = calculation.prop_map(move |(operation, with_x, k)| {
        let shifts = matches!(operation, BPF_LSH | BPF_RSH);
        match with_x && !(tame && shifts) {
            true => vec![step(BPF_ALU | operation | BPF_X, 0, 0, 0)],
            false if shifts => vec![step(BPF_ALU | operation | BPF_K, 0, 0, k % 32)],
            false if k == 0 => vec![step(BPF_ALU | operation | BPF_K, 0, 0, 1)],
            false => vec![step(BPF_ALU | operation | BPF_K, 0, 0, k)],
        }
    });
    prop_oneof![
        6 => absolute,
        3 => behind,
        6 => calculation,
        1 => (0_u32..90).prop_map(move |k| one(step(BPF_LDX | BPF_MSH | BPF_B, 0, 0, k))),
        1 => Just(one(step(BPF_ALU | BPF_NEG, 0, 0, 0))),
        1 => number.clone().prop_map(move |k| one(step(BPF_LD | BPF_IMM, 0, 0, k))),
        1 => number.prop_map(move |k| one(step(BPF_LDX | BPF_IMM, 0, 0, k))),
        1 => Just(one(step(BPF_LD | BPF_LEN | BPF_W, 0, 0, 0))),
        1 => Just(one(step(BPF_LDX | BPF_LEN | BPF_W, 0, 0, 0))),
        2 => words.clone().prop_map(move |k| one(step(BPF_LD | BPF_MEM, 0, 0, k))),
        1 => words.clone().prop_map(move |k| one(step(BPF_LDX | BPF_MEM, 0, 0, k))),
        2 => words.clone().prop_map(move |k| one(step(BPF_ST, 0, 0, k))),
        1 => words.prop_map(move |k| one(step(BPF_STX, 0, 0, k))),
        1 => Just(one(step(BPF_MISC | BPF_TAX, 0, 0, 0))),
        1 => Just(one(step(BPF_MISC | BPF_TXA, 0, 0, 0))),
    ]
}

/// A jump whose ways are still any, or an answer.
fn turn() -> impl Strategy<Value = Vec<sock_filter>> {
    use libc::*;
    let comparison = prop::sample::select(vec![BPF_JEQ, BPF_JGT, BPF_JGE, BPF_JSET]);
    let source = prop_oneof![3 => Just(BPF_K), 1 => Just(BPF_X)];
    let number = prop_oneof![4 => 0_u32..70, 1 => any::<u32>()];
    let branch = (comparison, source, any::<u8>(), any::<u8>(), number);
    prop_oneof![
        12 => branch.prop_map(|(how, from, jt, jf, k)| vec![step(BPF_JMP | how | from, jt, jf, k)]),
        1 => any::<u8>().prop_map(|k| vec![step(BPF_JMP | BPF_JA, 0, 0, k.into())]),
        1 => prop_oneof![Just(0_u32), Just(1), Just(262_144)]
            .prop_map(|k| vec![step(BPF_RET | BPF_K, 0, 0, k)]),
        1 => Just(vec![step(BPF_RET | BPF_A, 0, 0, 0)]),
    ]
}

/// Any filter.
pub(super) fn filters(tame: bool) -> impl Strategy<Value = Vec<sock_filter>> {
    use libc::*;
    let steps = prop_oneof![2 => plain_step(tame).boxed(), 1 => turn().boxed()];
    prop::collection::vec(steps, 1..40).prop_map(move |steps| {
        let begin = (0..WORDS_USED).map(|word| step(BPF_ST, 0, 0, word));
        let mut steps: Vec<_> = begin.chain(steps.into_iter().flatten()).collect();
        steps.push(step(BPF_RET | BPF_A, 0, 0, 0));
        steps.push(step(BPF_RET | BPF_K, 0, 0, 0));
        // Between what limits X and what reads there, nothing jumps.
        let within = |(number, step): (usize, &sock_filter)| {
            let reads =
                |number: usize| steps.get(number).is_some_and(|step| step.code & 0xe7 == 0x40);
            let is_tax = u32::from(step.code) == BPF_MISC | BPF_TAX;
            tame && (reads(number) || is_tax && reads(number + 1))
        };
        let within: Vec<bool> = steps.iter().enumerate().map(within).collect();
        let last = steps.len() - 1;
        for (number, step) in steps.iter_mut().enumerate() {
            let left = (last - number).max(1);
            let over = |any: u32| {
                let over = any as usize % left;
                over + within[number + 1 + over..].iter().take_while(|within| **within).count()
            };
            if u32::from(step.code) == BPF_JMP | BPF_JA {
                step.k = over(step.k) as u32;
            } else if u32::from(step.code) & 7 == BPF_JMP {
                (step.jt, step.jf) = (over(step.jt.into()) as u8, over(step.jf.into()) as u8);
            }
        }
        steps
    })
}
