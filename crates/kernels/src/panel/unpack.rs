//! One row of a panel to f32: the rows of a tied embedding.

use super::layout::{self, BLOCK_GROUPS, BLOCK_VALUES, HIGH_BITS, Layout, MINIMUMS, SUB_SCALES};
use super::{PANEL_ROWS, PanelType};
use crate::float16::{bf16_to_f32, f16_to_f32};

/// `panel` has the length that `out` asks for.
pub(super) fn unpack_row(panel_type: PanelType, panel: &[u8], lane: usize, out: &mut [f32]) {
    match panel_type {
        PanelType::F32 => unpack_floats(panel, lane, out, f32::from_le_bytes),
        PanelType::F16 => unpack_floats(panel, lane, out, |bytes| f16_to_f32(u16::from_le_bytes(bytes))),
        PanelType::BF16 => unpack_floats(panel, lane, out, |bytes| bf16_to_f32(u16::from_le_bytes(bytes))),
        PanelType::Q8_0 => unpack_blocks(layout::Q8_0, panel, lane, out, unpack_q8_0),
        PanelType::Q4_0 => unpack_blocks(layout::Q4_0, panel, lane, out, unpack_q4_0),
        PanelType::Q4_1 => unpack_blocks(layout::Q4_1, panel, lane, out, unpack_q4_1),
        PanelType::Q5_0 => unpack_blocks(layout::Q5_0, panel, lane, out, unpack_q5_0),
        PanelType::Q4_K => unpack_blocks(layout::Q4_K, panel, lane, out, unpack_q4_k),
        PanelType::Q6_K => unpack_blocks(layout::Q6_K, panel, lane, out, unpack_q6_k),
    }
}

fn unpack_floats<const BYTES: usize>(panel: &[u8], lane: usize, out: &mut [f32], decode: fn([u8; BYTES]) -> f32) {
    let (values, _) = panel.as_chunks::<BYTES>();
    for (to, &value) in out.iter_mut().zip(values[lane..].iter().step_by(PANEL_ROWS)) {
        *to = decode(value);
    }
}

/// One row's share of a block of a record.
struct Slot<'a> {
    record: &'a [u8],
    lane: usize,
    block: usize,
    layout: Layout,
}

fn unpack_blocks(
    layout: Layout,
    panel: &[u8],
    lane: usize,
    out: &mut [f32],
    unpack: fn(Slot<'_>, &mut [f32; BLOCK_VALUES]),
) {
    let (blocks, _) = out.as_chunks_mut::<BLOCK_VALUES>();
    for (out, record) in blocks
        .chunks_mut(layout.blocks)
        .zip(panel.chunks_exact(layout.record_bytes()))
    {
        for (block, values) in out.iter_mut().enumerate() {
            unpack(
                Slot {
                    record,
                    lane,
                    block,
                    layout,
                },
                values,
            );
        }
    }
}

impl Slot<'_> {
    /// This row's f16 among those of the 16 rows at `offset`.
    fn f16(&self, offset: usize) -> f32 {
        let at = offset + self.lane * 2;
        f16_to_f32(u16::from_le_bytes([self.record[at], self.record[at + 1]]))
    }

    /// This row's word of the line at `offset`.
    fn word(&self, offset: usize) -> u32 {
        let at = offset + self.lane * 4;
        u32::from_le_bytes([
            self.record[at],
            self.record[at + 1],
            self.record[at + 2],
            self.record[at + 3],
        ])
    }

    /// This row's word of line `line` of the block.
    fn line(&self, line: usize) -> u32 {
        self.word(self.layout.block_offset(self.block) + line * 64)
    }

    /// The nibbles of group `group`, one a byte.
    fn nibbles(&self, group: usize) -> u32 {
        self.line(group % 4) >> (4 * (group / 4)) & 0x0f0f_0f0f
    }

    /// Value `v` of the 6-bit values of Q4_K.
    fn six_bits(&self, v: usize) -> f32 {
        let word = |i: usize| self.word(SUB_SCALES + i * 64);
        let value = match v {
            15 => word(0) >> 30 | word(1) >> 30 << 2 | word(2) >> 30 << 4,
            _ => word(v / 5) >> (6 * (v % 5)) & 63,
        };
        value as f32
    }
}

/// Decodes the four bytes of each group with `decode`, whose first argument is the index of the value.
fn decode_groups(out: &mut [f32; BLOCK_VALUES], group_word: impl Fn(usize) -> u32, decode: impl Fn(usize, u8) -> f32) {
    for group in 0..BLOCK_GROUPS {
        for (j, code) in group_word(group).to_le_bytes().into_iter().enumerate() {
            let i = group * 4 + j;
            out[i] = decode(i, code);
        }
    }
}

fn unpack_q8_0(slot: Slot<'_>, out: &mut [f32; BLOCK_VALUES]) {
    let scale = slot.f16(slot.block * 32);
    decode_groups(
        out,
        |group| slot.line(group),
        |_, code| (f32::from(code) - 128.0) * scale,
    );
}

fn unpack_q4_0(slot: Slot<'_>, out: &mut [f32; BLOCK_VALUES]) {
    let scale = slot.f16(slot.block * 32);
    decode_groups(
        out,
        |group| slot.nibbles(group),
        |_, code| (f32::from(code) - 8.0) * scale,
    );
}

fn unpack_q4_1(slot: Slot<'_>, out: &mut [f32; BLOCK_VALUES]) {
    let scale = slot.f16(slot.block * 64);
    let minimum = slot.f16(slot.block * 64 + MINIMUMS);
    decode_groups(
        out,
        |group| slot.nibbles(group),
        |_, code| f32::from(code) * scale + minimum,
    );
}

fn unpack_q5_0(slot: Slot<'_>, out: &mut [f32; BLOCK_VALUES]) {
    let scale = slot.f16(slot.block * 32);
    let high = slot.line(HIGH_BITS / 64);
    let codes = |group| slot.nibbles(group) | (high >> group & 0x0101_0101) << 4;
    decode_groups(out, codes, |_, code| (f32::from(code) - 16.0) * scale);
}

fn unpack_q4_k(slot: Slot<'_>, out: &mut [f32; BLOCK_VALUES]) {
    let scale = slot.f16(0) * slot.six_bits(slot.block);
    let minimum = slot.f16(MINIMUMS) * slot.six_bits(8 + slot.block);
    decode_groups(
        out,
        |group| slot.nibbles(group),
        |_, code| f32::from(code) * scale - minimum,
    );
}

fn unpack_q6_k(slot: Slot<'_>, out: &mut [f32; BLOCK_VALUES]) {
    let d = f32::from_bits(slot.word(0));
    let scales: [f32; 2] = std::array::from_fn(|half| {
        let at = SUB_SCALES + (slot.block * 2 + half) * PANEL_ROWS + slot.lane;
        d * f32::from(slot.record[at] as i8)
    });
    let high = |group| slot.line(HIGH_BITS / 64 + group / 4) >> (2 * (group % 4)) & 0x0303_0303;
    let codes = |group| slot.nibbles(group) | high(group) << 4;
    decode_groups(out, codes, |i, code| (f32::from(code) - 32.0) * scales[i / 16]);
}
