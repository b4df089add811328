//! Ops that work on each number, or on each head, by itself.

use goldcrest_kernels::{Activation as Kernel, GatedActivation, Xielu};
use goldcrest_model::plan::{BufferId, Factors, VectorId};
use goldcrest_model::spec::{self, Activation, PositionScale};

use super::Call;
use super::rows::over_rows;
use crate::CpuError;

impl Call<'_, '_> {
    pub fn activate(&mut self, activation: Activation, gate: BufferId, up: Option<BufferId>) -> Result<(), CpuError> {
        let cpu = self.cpu;
        let width = self.width(gate);
        let activation = kernel(activation);
        match up {
            Some(up) => {
                let (up, gate) = self.two_buffers(up, gate);
                over_rows(&cpu.pool, gate, width, &|first, rows| {
                    cpu.kernels
                        .activate_gated(activation, rows, &up[first * width..][..rows.len()]);
                })
            }
            None => over_rows(&cpu.pool, self.buffer_mut(gate), width, &|_, rows| {
                cpu.kernels.activate(activation, rows);
            }),
        }
    }

    pub fn scale(&mut self, buffer: BufferId, factors: Factors) -> Result<(), CpuError> {
        let (cpu, program) = (self.cpu, self.program);
        let width = self.width(buffer);
        match factors {
            Factors::One(factor) => over_rows(&cpu.pool, self.buffer_mut(buffer), width, &|_, rows| {
                cpu.kernels.scale(rows, factor);
            }),
            Factors::Vector(id) => {
                let vector = program.weights.vector(id);
                over_rows(&cpu.pool, self.buffer_mut(buffer), width, &|_, rows| {
                    for row in rows.chunks_exact_mut(width) {
                        cpu.kernels.mul_groups(row, vector);
                    }
                })
            }
            Factors::Buffer(id) => {
                let groups = self.width(id);
                let (factors, rows) = self.two_buffers(id, buffer);
                over_rows(&cpu.pool, rows, width, &|first, rows| {
                    let factors = factors[first * groups..].chunks_exact(groups);
                    for (row, factors) in rows.chunks_exact_mut(width).zip(factors) {
                        cpu.kernels.mul_groups(row, factors);
                    }
                })
            }
        }
    }

    pub fn scale_by_position(&mut self, scale: PositionScale, buffer: BufferId) -> Result<(), CpuError> {
        let cpu = self.cpu;
        let width = self.width(buffer);
        let len = self.row_count(buffer) * width;
        self.scratch.forget_packed(buffer);
        let super::Scratch { buffers, rows, .. } = &mut *self.scratch;
        for (row, values) in rows.iter().zip(buffers[buffer.0][..len].chunks_exact_mut(width)) {
            cpu.kernels.scale(values, scale.at(row.position));
        }
        Ok(())
    }

    pub fn clamp(&mut self, low: f32, high: f32, buffer: BufferId) -> Result<(), CpuError> {
        let cpu = self.cpu;
        let width = self.width(buffer);
        over_rows(&cpu.pool, self.buffer_mut(buffer), width, &|_, rows| {
            // Not min and max of f32, which would swallow NaN.
            for x in rows {
                if *x < low {
                    *x = low;
                } else if *x > high {
                    *x = high;
                }
            }
        })
    }

    pub fn copy(&mut self, input: BufferId, out: BufferId) -> Result<(), CpuError> {
        let (from, to) = self.two_buffers(input, out);
        to.copy_from_slice(from);
        Ok(())
    }

    pub fn columns(&mut self, first: usize, input: BufferId, out: BufferId) -> Result<(), CpuError> {
        let (from_width, width) = (self.width(input), self.width(out));
        let (from, to) = self.two_buffers(input, out);
        for (from, to) in from.chunks_exact(from_width).zip(to.chunks_exact_mut(width)) {
            to.copy_from_slice(&from[first..][..width]);
        }
        Ok(())
    }

    pub fn concat(&mut self, heads: usize, parts: [BufferId; 2], out: BufferId) -> Result<(), CpuError> {
        let rows = self.scratch.rows.len();
        let [first_width, second_width] = parts.map(|part| self.width(part));
        let (reads, to) = self.scratch.split(out);
        let [first, second] = [(parts[0], first_width), (parts[1], second_width)]
            .map(|(part, width)| reads.get(part, rows * width).chunks_exact(width / heads));
        let width = (first_width + second_width) / heads;
        let to = to[..rows * heads * width].chunks_exact_mut(width);
        for (head, (first, second)) in to.zip(first.zip(second)) {
            let (left, right) = head.split_at_mut(first.len());
            left.copy_from_slice(first);
            right.copy_from_slice(second);
        }
        Ok(())
    }

    pub fn add(&mut self, out: BufferId, input: BufferId, scale: f32) -> Result<(), CpuError> {
        let cpu = self.cpu;
        let width = self.width(out);
        let (input, out) = self.two_buffers(input, out);
        over_rows(&cpu.pool, out, width, &|first, rows| {
            let input = &input[first * width..][..rows.len()];
            if scale == 1.0 {
                cpu.kernels.add(rows, input);
            } else {
                cpu.kernels.add_scaled(rows, scale, input);
            }
        })
    }

    pub fn add_vector(&mut self, vector: VectorId, buffer: BufferId) -> Result<(), CpuError> {
        let (cpu, program) = (self.cpu, self.program);
        let width = self.width(buffer);
        let vector = program.weights.vector(vector);
        over_rows(&cpu.pool, self.buffer_mut(buffer), width, &|_, rows| {
            cpu.kernels.add_bias(rows, vector);
        })
    }
}

/// The kernel of an activation with a gate.
pub fn gated_kernel(activation: spec::GatedActivation) -> GatedActivation {
    match activation {
        spec::GatedActivation::Product(activation) => GatedActivation::Plain(kernel(activation)),
        spec::GatedActivation::ClampedSwiGlu { alpha, limit } => GatedActivation::ClampedSwiGlu { alpha, limit },
        spec::GatedActivation::LimitedSilu { limit } => GatedActivation::LimitedSilu { limit },
    }
}

/// The kernel of an activation.
pub fn kernel(activation: Activation) -> Kernel {
    match activation {
        Activation::Silu => Kernel::Silu,
        Activation::Gelu => Kernel::GeluErf,
        Activation::GeluTanh => Kernel::GeluTanh,
        Activation::Relu => Kernel::Relu,
        Activation::ReluSquared => Kernel::ReluSquared,
        Activation::Sigmoid => Kernel::Sigmoid,
        Activation::Softplus => Kernel::Softplus,
        Activation::Exp => Kernel::Exp,
        Activation::Xielu {
            alpha_p,
            alpha_n,
            beta,
            eps,
        } => Kernel::Xielu(Xielu {
            alpha_p,
            alpha_n,
            beta,
            eps,
        }),
    }
}
