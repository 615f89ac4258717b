//! Instructions of extended BPF, as they are put together.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use libbpf_sys::bpf_insn;

use Operand::{In, Is};
use Register::R0;

/// Codes of instructions that classic BPF has too (linux/bpf_common.h) are those of libc.
pub(super) const ALU: u32 = libc::BPF_ALU;
pub(super) const LDX: u32 = libc::BPF_LDX;
pub(super) const JMP: u32 = libc::BPF_JMP;
/// What extended BPF adds (linux/bpf.h).
pub(super) const ALU64: u32 = 0x07;
pub(super) const JMP32: u32 = 0x06;
pub(super) const STORE: u32 = libc::BPF_STX;
pub(super) const STORE_NUMBER: u32 = libc::BPF_ST;
pub(super) const MEM: u32 = libc::BPF_MEM;
pub(super) const DOUBLE: u32 = 0x18;
pub(super) const MOV: u32 = 0xb0;
pub(super) const TO_BIG_ENDIAN: u32 = 0xd0 | libc::BPF_X;
pub(super) const JNE: u32 = 0x50;
pub(super) const JLT: u32 = 0xa0;
pub(super) const JLE: u32 = 0xb0;
pub(super) const CALL: u32 = 0x80;
pub(super) const EXIT: u32 = 0x90;

/// Registers. The first six are what a call uses and loses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    /// The filter's accumulator.
    A = 6,
    /// The packet.
    Data = 7,
    DataEnd = 8,
    /// The filter's index.
    X = 9,
    Stack = 10,
}

/// Where a jump goes.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Step(usize),
    Match,
    NoMatch,
}

/// The second part of an operation.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    Is(u32),
    In(Register),
}

/// Instructions, some of which jump to where nobody knows yet.
#[derive(Default)]
pub(super) struct Code {
    instructions: Vec<bpf_insn>,
    /// Those that jump, and where they do.
    pub(super) jumps: Vec<(usize, Target)>,
}

impl Code {
    /// Where the next instruction will be.
    pub(super) fn here(&self) -> usize {
        self.instructions.len()
    }

    /// With the jumps filled in; none if one of them does not reach far enough.
    pub(super) fn finish(mut self, place: impl Fn(Target) -> usize) -> Option<Vec<bpf_insn>> {
        for (from, target) in self.jumps {
            self.instructions[from].off = i16::try_from(place(target) - from - 1).ok()?;
        }
        Some(self.instructions)
    }

    /// Has a register stand for a map.
    pub(super) fn set_map(&mut self, register: Register, map: BorrowedFd<'_>) {
        const MAP: u8 = libbpf_sys::BPF_PSEUDO_MAP_FD as u8;
        let load = libc::BPF_LD | DOUBLE;
        self.instructions.push(instruction(load, register as u8, MAP, 0, map.as_raw_fd()));
        self.instructions.push(instruction(0, 0, 0, 0, 0));
    }

    pub(super) fn go(&mut self, target: Target) {
        self.jumps.push((self.here(), target));
        self.put(JMP | libc::BPF_JA, R0, R0, 0, 0);
    }

    pub(super) fn go_if(&mut self, operation: u32, left: Register, right: Operand, target: Target) {
        self.jumps.push((self.here(), target));
        self.operate(operation, left, right);
    }

    pub(super) fn set(&mut self, register: Register, operand: Operand) {
        self.alu(MOV, register, operand);
    }

    /// On 32 bits, as a filter calculates.
    pub(super) fn alu(&mut self, operation: u32, register: Register, operand: Operand) {
        self.operate(ALU | operation, register, operand);
    }

    /// For addresses.
    pub(super) fn alu64(&mut self, operation: u32, register: Register, operand: Operand) {
        self.operate(ALU64 | operation, register, operand);
    }

    pub(super) fn operate(&mut self, operation: u32, register: Register, operand: Operand) {
        match operand {
            Is(number) => self.put(operation, register, R0, 0, number.cast_signed()),
            In(from) => self.put(operation | libc::BPF_X, register, from, 0, 0),
        }
    }

    pub(super) fn put(
        &mut self,
        code: u32,
        to: Register,
        from: Register,
        offset: i16,
        number: i32,
    ) {
        self.instructions.push(instruction(code, to as u8, from as u8, offset, number));
    }
}

pub(super) fn instruction(code: u32, to: u8, from: u8, offset: i16, number: i32) -> bpf_insn {
    bpf_insn {
        code: code as u8,
        _bitfield_1: bpf_insn::new_bitfield_1(to, from),
        off: offset,
        imm: number,
        ..Default::default()
    }
}
