//! Steps on the residual stream at its boundaries: each row by itself.

use goldcrest_kernels::Kernels;
use goldcrest_model::backend::{Part, StreamStep};
use goldcrest_model::plan::BufferId;

use super::Call;
use super::rows::over_rows;
use crate::CpuError;

impl Call<'_, '_> {
    pub fn steer(&mut self, boundary: usize, stream: BufferId) -> Result<(), CpuError> {
        let (cpu, batch) = (self.cpu, self.batch);
        if batch.parts.iter().all(|part| steps(part, boundary).is_empty()) {
            return Ok(());
        }
        let width = self.width(stream);
        let stream = self.buffer_mut(stream);
        for (rows, part) in batch.part_rows() {
            let steps = steps(part, boundary);
            if !steps.is_empty() {
                let rows = &mut stream[rows.start * width..rows.end * width];
                over_rows(&cpu.pool, rows, width, &|_, rows| {
                    for row in rows.chunks_exact_mut(width) {
                        steer_row(cpu.kernels, row, steps);
                    }
                })?;
            }
        }
        Ok(())
    }
}

fn steps<'a>(part: &Part<'a>, boundary: usize) -> &'a [StreamStep] {
    part.steering
        .and_then(|steps| steps.get(boundary))
        .map_or(&[], Vec::as_slice)
}

fn steer_row(kernels: Kernels, row: &mut [f32], steps: &[StreamStep]) {
    let length = |row: &[f32]| kernels.dot(row, row).sqrt();
    let before = match steps.contains(&StreamStep::Renorm) {
        true => length(row),
        false => 0.0,
    };
    for step in steps {
        match step {
            StreamStep::Add { vector, scale } => kernels.add_scaled(row, *scale, vector),
            StreamStep::Ablate { unit, scale } => {
                let along = kernels.dot(row, unit);
                kernels.add_scaled(row, -(scale * along), unit);
            }
            StreamStep::Clamp { unit, min, max } => {
                let along = kernels.dot(row, unit);
                // A component that is NaN is left to show itself.
                if along < *min {
                    kernels.add_scaled(row, min - along, unit);
                } else if along > *max {
                    kernels.add_scaled(row, max - along, unit);
                }
            }
            StreamStep::Renorm => {
                let factor = before / length(row);
                if factor.is_finite() && factor != 1.0 {
                    kernels.scale(row, factor);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn steered(row: [f32; 2], steps: &[StreamStep]) -> [f32; 2] {
        let mut row = row;
        steer_row(Kernels::best(), &mut row, steps);
        row
    }

    #[test]
    fn steps_do_what_they_say_in_their_order() {
        let unit: Arc<[f32]> = Arc::new([0.0, 1.0]);
        let add = StreamStep::Add {
            vector: Arc::new([1.0, -2.0]),
            scale: 2.0,
        };
        let ablate = |scale| StreamStep::Ablate {
            unit: unit.clone(),
            scale,
        };
        let clamp = StreamStep::Clamp {
            unit: unit.clone(),
            min: -1.0,
            max: 2.0,
        };
        assert_eq!(steered([3.0, 4.0], std::slice::from_ref(&add)), [5.0, 0.0]);
        assert_eq!(steered([3.0, 4.0], &[ablate(1.0)]), [3.0, 0.0]);
        assert_eq!(steered([3.0, 4.0], &[ablate(0.5)]), [3.0, 2.0]);
        assert_eq!(steered([3.0, 4.0], std::slice::from_ref(&clamp)), [3.0, 2.0]);
        assert_eq!(steered([3.0, -4.0], std::slice::from_ref(&clamp)), [3.0, -1.0]);
        assert_eq!(steered([3.0, 1.5], std::slice::from_ref(&clamp)), [3.0, 1.5]);
        // The length is that before the first step.
        assert_eq!(steered([3.0, 4.0], &[ablate(1.0), StreamStep::Renorm]), [5.0, 0.0]);
        assert_eq!(steered([3.0, 4.0], &[add.clone(), ablate(1.0)]), [5.0, 0.0]);
        assert_eq!(steered([3.0, 4.0], &[ablate(1.0), add]), [5.0, -4.0]);
    }

    #[test]
    fn a_row_without_length_or_without_numbers_stays() {
        let ablate = StreamStep::Ablate {
            unit: Arc::new([0.0, 1.0]),
            scale: 1.0,
        };
        assert_eq!(steered([0.0, 4.0], &[ablate.clone(), StreamStep::Renorm]), [0.0, 0.0]);
        assert_eq!(
            steered([-0.0, 0.0], &[StreamStep::Renorm]).map(f32::to_bits),
            [1 << 31, 0]
        );
        let clamp = StreamStep::Clamp {
            unit: Arc::new([0.0, 1.0]),
            min: 0.0,
            max: 1.0,
        };
        assert!(steered([1.0, f32::NAN], &[clamp, StreamStep::Renorm])[1].is_nan());
    }
}
