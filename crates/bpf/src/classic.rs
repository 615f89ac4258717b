//! Filters of classic BPF as XDP programs.
//!
//! A filter says which packets match. Of it a program is made that hands a packet that matches to the
//! first program of a map (`BPF_MAP_TYPE_PROG_ARRAY`), and others to the second. It means what the
//! filter means to libpcap (`bpf_filter`): a load that reaches beyond the packet, and a division by
//! zero, end it without a match. Of a packet in several buffers it sees what is in the first, but its
//! length is that of the whole.
//!
//! The jumps of a filter go forwards, so one look at each step is enough to know which steps are
//! reached, and how much of the packet was found to be there on all ways to it: that is looked at once.
//!
//! Refused are the kernel's extensions of classic BPF, by which a filter asks for what is not in the
//! packet: XDP does not know it.

use std::fmt;
use std::os::fd::BorrowedFd;

use libbpf_sys::bpf_insn;
use libc::sock_filter;

use code::Operand::{In, Is};
use code::Register::{A, Data, DataEnd, R0, R1, R2, R3, Stack, X};
use code::{Code, Register, Target};

mod code;
#[cfg(test)]
mod tests;

/// Of the map's programs: that for packets that match.
pub(crate) const MATCH: i32 = 0;
/// And that for all others.
pub(crate) const NO_MATCH: i32 = 1;

/// The farthest that the kernel's verifier lets a program look into a packet (`MAX_PACKET_OFF`).
const FARTHEST: u64 = 0xffff;
/// Words of a filter's memory (`BPF_MEMWORDS`).
const WORDS: u32 = 16;

/// Why a filter is not made a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A step that no filter has, or that we do not know.
    Step { number: usize, why: String },
    /// The jumps of such a long program do not reach far enough.
    TooLong { steps: usize },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Step { number, why } => write!(f, "step {number} of the filter: {why}"),
            Refused::TooLong { steps } => write!(f, "the filter is too long, with {steps} steps"),
        }
    }
}

/// Makes a program of a filter; `next` are the programs that it hands packets to.
pub(crate) fn translate(
    steps: &[sock_filter],
    next: BorrowedFd<'_>,
) -> Result<Vec<bpf_insn>, Refused> {
    let mut program = Translation::new(steps.len());
    program.begin(steps);
    for (number, step) in steps.iter().enumerate() {
        // Nothing leads to it, and the kernel refuses such instructions.
        let Some(there) = program.there[number] else { continue };
        program.places[number] = Some(program.code.here());
        let refused = |why| Refused::Step { number, why };
        program.step(number, step, there).map_err(refused)?;
    }
    program.end(next);
    program.jump()
}

/// What a filter asks for that is not in the packet.
pub(crate) fn asks_for(steps: &[sock_filter]) -> Option<String> {
    let is_load = |step: &&sock_filter| {
        let given = u32::from(step.code);
        matches!(
            (given & 7, given & 0xe0),
            (libc::BPF_LD, libc::BPF_ABS) | (libc::BPF_LDX, libc::BPF_MSH)
        )
    };
    let negative = |step: &sock_filter| (step.k.cast_signed() < 0).then(|| extension(step.k));
    steps.iter().filter(is_load).find_map(negative)
}

/// On the stack: what XDP says of the packet; below it, the filter's memory.
const CONTEXT: i16 = -8;

const fn word(number: u32) -> i16 {
    CONTEXT - 4 - 4 * number as i16
}

struct Translation {
    code: Code,
    /// Where each step begins, of those that are reached.
    places: Vec<Option<usize>>,
    /// So many bytes of the packet are there at each step; none where no way leads.
    there: Vec<Option<u64>>,
    matches: Option<usize>,
    matches_not: Option<usize>,
}

impl Translation {
    fn new(steps: usize) -> Self {
        let mut there = vec![None; steps];
        if let Some(first) = there.first_mut() {
            *first = Some(0);
        }
        Self {
            code: Code::default(),
            places: vec![None; steps],
            there,
            matches: None,
            matches_not: None,
        }
    }

    /// What stands before the first step: registers and memory as a filter finds them.
    fn begin(&mut self, steps: &[sock_filter]) {
        const DATA: i16 = std::mem::offset_of!(libbpf_sys::xdp_md, data) as i16;
        const DATA_END: i16 = std::mem::offset_of!(libbpf_sys::xdp_md, data_end) as i16;
        self.code.put(code::STORE | code::MEM | code::DOUBLE, Stack, R1, CONTEXT, 0);
        self.code.put(code::LDX | code::MEM | libc::BPF_W, Data, R1, DATA, 0);
        self.code.put(code::LDX | code::MEM | libc::BPF_W, DataEnd, R1, DATA_END, 0);
        self.code.set(A, Is(0));
        self.code.set(X, Is(0));
        let is_memory = |step: &&sock_filter| {
            let class = u32::from(step.code) & 7;
            let mode = u32::from(step.code) & 0xe0;
            matches!(class, libc::BPF_LD | libc::BPF_LDX) && mode == libc::BPF_MEM
        };
        let mut read: Vec<u32> = steps.iter().filter(is_memory).map(|step| step.k).collect();
        read.sort_unstable();
        read.dedup();
        for number in read.into_iter().filter(|number| *number < WORDS) {
            self.code.put(code::STORE_NUMBER | code::MEM | libc::BPF_W, Stack, R0, word(number), 0);
        }
    }

    /// One step, where so many bytes of the packet are there.
    fn step(&mut self, number: usize, step: &sock_filter, there: u64) -> Result<(), String> {
        let given = u32::from(step.code);
        match given & 7 {
            _ if given > 0xff => return Err(unknown(step)),
            libc::BPF_LD | libc::BPF_LDX => return self.load(number, step, there),
            libc::BPF_ST | libc::BPF_STX if given & !7 == 0 => {
                let from = if given == libc::BPF_ST { A } else { X };
                let word = memory(step.k)?;
                self.code.put(code::STORE | code::MEM | libc::BPF_W, Stack, from, word, 0);
            }
            libc::BPF_ALU if is_division(given) && given & libc::BPF_X == 0 && step.k == 0 => {
                self.code.go(Target::NoMatch);
                return Ok(());
            }
            libc::BPF_ALU => self.calculate(step)?,
            libc::BPF_JMP => return self.branch(number, step, there),
            libc::BPF_RET => return self.answer(step),
            libc::BPF_MISC if given & !7 == libc::BPF_TAX => self.code.set(X, In(A)),
            libc::BPF_MISC if given & !7 == libc::BPF_TXA => self.code.set(A, In(X)),
            _ => return Err(unknown(step)),
        }
        self.reaches(number + 1, there)
    }

    fn load(&mut self, number: usize, step: &sock_filter, there: u64) -> Result<(), String> {
        let given = u32::from(step.code);
        let (class, size, mode) = (given & 7, given & 0x18, given & 0xe0);
        let into = if class == libc::BPF_LD { A } else { X };
        let bytes = match size {
            libc::BPF_W => 4,
            libc::BPF_H => 2,
            _ => 1,
        };
        let mut there = Some(there);
        match (class, mode, size) {
            (_, libc::BPF_IMM, libc::BPF_W) => self.code.set(into, Is(step.k)),
            (_, libc::BPF_LEN, libc::BPF_W) => self.length(into),
            (_, libc::BPF_MEM, libc::BPF_W) => {
                let word = memory(step.k)?;
                self.code.put(code::LDX | code::MEM | libc::BPF_W, into, Stack, word, 0);
            }
            (libc::BPF_LD, libc::BPF_ABS, libc::BPF_W | libc::BPF_H | libc::BPF_B) => {
                there = self.load_at(A, step.k, bytes, there)?;
            }
            (libc::BPF_LD, libc::BPF_IND, libc::BPF_W | libc::BPF_H | libc::BPF_B) => {
                there = self.load_behind(step.k, bytes, there);
            }
            (libc::BPF_LDX, libc::BPF_MSH, libc::BPF_B) => {
                there = self.load_at(X, step.k, bytes, there)?;
                self.code.alu(libc::BPF_AND, X, Is(0xf));
                self.code.alu(libc::BPF_LSH, X, Is(2));
            }
            _ => return Err(unknown(step)),
        }
        there.map_or(Ok(()), |there| self.reaches(number + 1, there))
    }

    /// Loads from a place in the packet. Gives how much of the packet is there then; none if such a
    /// place never is.
    fn load_at(
        &mut self,
        into: Register,
        at: u32,
        bytes: u32,
        there: Option<u64>,
    ) -> Result<Option<u64>, String> {
        if at.cast_signed() < 0 {
            return Err(extension(at));
        }
        let end = u64::from(at) + u64::from(bytes);
        if end > FARTHEST {
            self.code.go(Target::NoMatch);
            return Ok(None);
        }
        if there < Some(end) {
            self.code.alu64(code::MOV, R1, In(Data));
            self.code.alu64(libc::BPF_ADD, R1, Is(end as u32));
            self.code.go_if(code::JMP | libc::BPF_JGT, R1, In(DataEnd), Target::NoMatch);
        }
        match i16::try_from(at) {
            Ok(at) => self.fetch(into, Data, at, bytes),
            Err(_) => {
                self.code.alu64(code::MOV, R1, In(Data));
                self.code.alu64(libc::BPF_ADD, R1, Is(at));
                self.fetch(into, R1, 0, bytes);
            }
        }
        Ok(there.max(Some(end)))
    }

    /// Loads from a place in the packet that is counted from X.
    fn load_behind(&mut self, at: u32, bytes: u32, there: Option<u64>) -> Option<u64> {
        let last = FARTHEST - u64::from(bytes);
        if u64::from(at) > last {
            self.code.go(Target::NoMatch);
            return None;
        }
        // X has 32 bits: the sum does not wrap.
        self.code.alu64(code::MOV, R1, In(X));
        self.code.alu64(libc::BPF_ADD, R1, Is(at));
        self.code.go_if(code::JMP | libc::BPF_JGT, R1, Is(last as u32), Target::NoMatch);
        self.code.alu64(code::MOV, R2, In(Data));
        self.code.alu64(libc::BPF_ADD, R2, In(R1));
        self.code.alu64(code::MOV, R3, In(R2));
        self.code.alu64(libc::BPF_ADD, R3, Is(bytes));
        self.code.go_if(code::JMP | libc::BPF_JGT, R3, In(DataEnd), Target::NoMatch);
        self.fetch(A, R2, 0, bytes);
        there
    }

    /// Reads from the packet, which is in the order of the network.
    fn fetch(&mut self, into: Register, from: Register, at: i16, bytes: u32) {
        let size = match bytes {
            4 => libc::BPF_W,
            2 => libc::BPF_H,
            _ => libc::BPF_B,
        };
        self.code.put(code::LDX | code::MEM | size, into, from, at, 0);
        if bytes > 1 {
            let bits = (8 * bytes).cast_signed();
            self.code.put(code::ALU | code::TO_BIG_ENDIAN, into, R0, 0, bits);
        }
    }

    fn length(&mut self, into: Register) {
        const GET_BUFF_LEN: i32 = libbpf_sys::BPF_FUNC_xdp_get_buff_len.cast_signed();
        self.code.put(code::LDX | code::MEM | code::DOUBLE, R1, Stack, CONTEXT, 0);
        self.code.put(code::JMP | code::CALL, R0, R0, 0, GET_BUFF_LEN);
        self.code.set(into, In(R0));
    }

    fn calculate(&mut self, step: &sock_filter) -> Result<(), String> {
        let given = u32::from(step.code);
        let operand = if given & libc::BPF_X == 0 { Is(step.k) } else { In(X) };
        let operation = given & 0xf0;
        match (operation, operand) {
            (libc::BPF_NEG, Is(_)) => self.code.alu(operation, A, Is(0)),
            (_, In(_)) if is_division(given) => {
                self.code.go_if(code::JMP32 | libc::BPF_JEQ, X, Is(0), Target::NoMatch);
                self.code.alu(operation, A, operand);
            }
            (libc::BPF_LSH | libc::BPF_RSH, Is(32..)) => self.code.set(A, Is(0)),
            (libc::BPF_LSH | libc::BPF_RSH, In(_)) => self.shift(operation),
            (
                libc::BPF_ADD
                | libc::BPF_SUB
                | libc::BPF_MUL
                | libc::BPF_DIV
                | libc::BPF_MOD
                | libc::BPF_AND
                | libc::BPF_OR
                | libc::BPF_XOR
                | libc::BPF_LSH
                | libc::BPF_RSH,
                _,
            ) => self.code.alu(operation, A, operand),
            _ => return Err(unknown(step)),
        }
        Ok(())
    }

    /// Shifts A by X. Whole words shift everything out, which instructions do not.
    fn shift(&mut self, operation: u32) {
        self.code.put(code::JMP32 | code::JLT, X, R0, 2, 32);
        self.code.set(A, Is(0));
        self.code.put(code::JMP, R0, R0, 1, 0);
        self.code.alu(operation, A, In(X));
    }

    fn branch(&mut self, number: usize, step: &sock_filter, there: u64) -> Result<(), String> {
        let given = u32::from(step.code);
        let target = |over: u32| (number as u64 + 1).saturating_add(over.into()) as usize;
        let operation = given & 0xf0;
        if given == libc::BPF_JMP | libc::BPF_JA {
            let to = target(step.k);
            self.reaches(to, there)?;
            if to != number + 1 {
                self.code.go(Target::Step(to));
            }
            return Ok(());
        }
        let inverse = match operation {
            libc::BPF_JEQ => Some(code::JNE),
            libc::BPF_JGT => Some(code::JLE),
            libc::BPF_JGE => Some(code::JLT),
            libc::BPF_JSET => None,
            _ => return Err(unknown(step)),
        };
        let operand = if given & libc::BPF_X == 0 { Is(step.k) } else { In(X) };
        let (yes, no) = (target(step.jt.into()), target(step.jf.into()));
        self.reaches(yes, there)?;
        self.reaches(no, there)?;
        let next = number + 1;
        match inverse {
            _ if yes == no => {
                if yes != next {
                    self.code.go(Target::Step(yes));
                }
            }
            Some(inverse) if yes == next => {
                self.code.go_if(code::JMP32 | inverse, A, operand, Target::Step(no));
            }
            _ => {
                self.code.go_if(code::JMP32 | operation, A, operand, Target::Step(yes));
                if no != next {
                    self.code.go(Target::Step(no));
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, step: &sock_filter) -> Result<(), String> {
        match u32::from(step.code) & !7 {
            libc::BPF_K if step.k == 0 => self.code.go(Target::NoMatch),
            libc::BPF_K => self.code.go(Target::Match),
            libc::BPF_A => {
                self.code.go_if(code::JMP32 | libc::BPF_JEQ, A, Is(0), Target::NoMatch);
                self.code.go(Target::Match);
            }
            _ => return Err(unknown(step)),
        }
        Ok(())
    }

    /// What stands behind the last step.
    fn end(&mut self, next: BorrowedFd<'_>) {
        let is_used =
            |target: fn(&Target) -> bool| self.code.jumps.iter().any(|(_, to)| target(to));
        let matches = is_used(|to| matches!(to, Target::Match));
        let matches_not = is_used(|to| matches!(to, Target::NoMatch));
        if matches {
            self.matches = Some(self.code.here());
            self.hand_on(next, MATCH);
        }
        if matches_not {
            self.matches_not = Some(self.code.here());
            self.hand_on(next, NO_MATCH);
        }
    }

    fn hand_on(&mut self, next: BorrowedFd<'_>, number: i32) {
        const TAIL_CALL: i32 = libbpf_sys::BPF_FUNC_tail_call.cast_signed();
        self.code.put(code::LDX | code::MEM | code::DOUBLE, R1, Stack, CONTEXT, 0);
        self.code.set_map(R2, next);
        self.code.set(R3, Is(number.cast_unsigned()));
        self.code.put(code::JMP | code::CALL, R0, R0, 0, TAIL_CALL);
        // There is no such program, since whoever had them is about to end.
        self.code.set(R0, Is(libbpf_sys::XDP_PASS));
        self.code.put(code::JMP | code::EXIT, R0, R0, 0, 0);
    }

    /// Fills in the jumps.
    fn jump(self) -> Result<Vec<bpf_insn>, Refused> {
        let place = |target| {
            let place = match target {
                Target::Step(number) => self.places[number],
                Target::Match => self.matches,
                Target::NoMatch => self.matches_not,
            };
            place.expect("what a jump reaches has a place")
        };
        self.code.finish(place).ok_or(Refused::TooLong { steps: self.places.len() })
    }

    /// A way leads to a step, with so many bytes of the packet there.
    fn reaches(&mut self, step: usize, there: u64) -> Result<(), String> {
        let known = self.there.get_mut(step).ok_or("it leads beyond the last one")?;
        *known = Some(known.map_or(there, |known| known.min(there)));
        Ok(())
    }
}

fn memory(number: u32) -> Result<i16, String> {
    match number < WORDS {
        true => Ok(word(number)),
        false => Err(format!("no word {number} of memory: expected 0 to {}", WORDS - 1)),
    }
}

fn is_division(given: u32) -> bool {
    matches!(given & 0xf0, libc::BPF_DIV | libc::BPF_MOD)
}

fn unknown(step: &sock_filter) -> String {
    format!("no instruction of classic BPF that is known here: code {:#x}", step.code)
}

/// What a load from a negative place asks the kernel for (linux/filter.h).
fn extension(at: u32) -> String {
    const NAMES: [&str; 16] = [
        "the packet's protocol",
        "the packet's type",
        "the interface's index",
        "a netlink attribute",
        "a nested netlink attribute",
        "the packet's mark",
        "the packet's queue",
        "the interface's hardware type",
        "the packet's hash",
        "the number of the CPU",
        "an exclusive or with X",
        "the VLAN tag beside the packet",
        "whether there is a VLAN tag beside the packet",
        "where the payload begins",
        "a random number",
        "the protocol of the VLAN tag beside the packet",
    ];
    let what = match at.cast_signed() {
        at @ libc::SKF_AD_OFF.. => {
            // Each stands for a word.
            let number = (at - libc::SKF_AD_OFF) as usize;
            let name = NAMES.get(number / 4).filter(|_| number.is_multiple_of(4));
            *name.unwrap_or(&"something that is not known here")
        }
        libc::SKF_NET_OFF.. => "an offset from the network header",
        _ => "an offset from the link layer's header",
    };
    format!("it asks for {what} ({at:#x}), which is not in the packet")
}
