//! Products in which every head has a matrix of its own: the threads share the heads.

use goldcrest_kernels::{ActivationType, Activations as Packed};
use goldcrest_model::plan::{BufferId, MatrixId};

use super::Call;
use super::matmul::{Weighted, multiply};
use crate::CpuError;
use crate::pool::{Parts, Tiles};

/// One thread's rows of one head.
#[derive(Default)]
pub struct HeadScratch {
    rows: Vec<f32>,
    packed: Packed,
}

impl HeadScratch {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<f32>() + self.packed.held_bytes()
    }
}

impl Call<'_, '_> {
    pub fn head_matmul(
        &mut self,
        first: MatrixId,
        heads: usize,
        input: BufferId,
        out: BufferId,
    ) -> Result<(), CpuError> {
        let (cpu, program) = (self.cpu, self.program);
        let (input_width, out_width) = (self.width(input), self.width(out));
        let rows = self.scratch.rows.len();
        let mut thread_scratch = std::mem::take(&mut self.scratch.heads);
        let (reads, out) = self.scratch.split(out);
        let input = reads.get(input, rows * input_width);
        let (inputs, outputs) = (input_width / heads, out_width / heads);
        let tiles = Tiles::new(&mut out[..rows * out_width], out_width, (rows.max(1), outputs));
        let own = Parts::of_slice(&mut thread_scratch, 1, cpu.pool.threads());
        let done = cpu.pool.run(&|thread| {
            let Some(scratch) = own.take_slice(thread).first_mut() else {
                return;
            };
            while let Some(mut tile) = tiles.next() {
                let base = tile.columns().start;
                let head = base / outputs;
                scratch.rows.clear();
                scratch.rows.reserve_exact(rows * inputs);
                for row in input.chunks_exact(input_width) {
                    scratch.rows.extend_from_slice(&row[head * inputs..][..inputs]);
                }
                scratch
                    .packed
                    .pack(cpu.kernels, ActivationType::F32, &scratch.rows, inputs);
                let weighted = Weighted::resident(&program.weights, MatrixId(first.0 + head), None);
                for run in scratch.packed.runs() {
                    multiply(cpu, &weighted, run, (&mut tile, base));
                }
            }
        });
        self.scratch.heads = thread_scratch;
        done?;
        Ok(())
    }
}
