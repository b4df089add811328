//! A checkpoint's weights in memory: matrices repacked into panels of 16 rows in one huge-page buffer, vectors as f32.

use std::sync::Mutex;

use goldcrest_format::{Checkpoint, DType, TensorInfo};
use goldcrest_kernels::{PANEL_ROWS, PanelType};
use goldcrest_model::plan::{MatrixId, Plan, VectorId};
use goldcrest_model::spec::{Matrix, RopeScaling, RowOrder, Vector};

use crate::CpuError;
use crate::buffer::HugeBuffer;
use crate::pool::{Pool, Tiles};

/// The panel type for weights of a file's type; `None`: they are decoded to f32.
pub fn panel_type(dtype: DType) -> Option<PanelType> {
    Some(match dtype {
        DType::F32 => PanelType::F32,
        DType::F16 => PanelType::F16,
        DType::BF16 => PanelType::BF16,
        DType::Q8_0 => PanelType::Q8_0,
        DType::Q4_0 => PanelType::Q4_0,
        DType::Q4_1 => PanelType::Q4_1,
        DType::Q5_0 => PanelType::Q5_0,
        DType::Q4_K => PanelType::Q4_K,
        DType::Q6_K => PanelType::Q6_K,
        _ => return None,
    })
}

/// All weights of a plan.
pub struct Weights {
    panels: HugeBuffer<u8>,
    matrices: Vec<Panels>,
    vectors: Vec<Vec<f32>>,
    /// inv_freq of each rope with the factor of cos and sin.
    ropes: Vec<(Vec<f32>, f32)>,
}

/// Where a matrix lies in the buffer, and how.
#[derive(Clone, Copy, Debug)]
pub struct Panels {
    pub panel_type: PanelType,
    pub outputs: usize,
    /// Inputs.
    pub k: usize,
    pub panel_bytes: usize,
    start: usize,
}

impl Panels {
    fn count(&self) -> usize {
        self.outputs.div_ceil(PANEL_ROWS)
    }
}

impl Weights {
    pub fn load(plan: &Plan, checkpoint: &Checkpoint, pool: &Pool) -> Result<Weights, CpuError> {
        let mut bytes = 0_usize;
        let mut matrices = Vec::with_capacity(plan.matrices.len());
        for matrix in &plan.matrices {
            let panel_type = panel_type(matrix.dtype).unwrap_or(PanelType::F32);
            let panel_bytes = panel_type.panel_bytes(matrix.cols);
            let panels = Panels {
                panel_type,
                outputs: matrix.outputs(),
                k: matrix.cols,
                panel_bytes,
                start: bytes,
            };
            // Saturated, so that a size beyond the address space is refused by the allocation.
            bytes = bytes.saturating_add(panels.count().saturating_mul(panel_bytes));
            matrices.push(panels);
        }
        let mut buffer = HugeBuffer::zeroed(bytes)?;
        for (matrix, panels) in plan.matrices.iter().zip(&matrices) {
            let target = &mut buffer[panels.start..][..panels.count() * panels.panel_bytes];
            load_matrix(checkpoint, matrix, panels, target, pool)?;
        }
        let vectors = plan
            .vectors
            .iter()
            .map(|vector| load_vector(checkpoint, vector))
            .collect::<Result<_, _>>()?;
        let ropes = plan.ropes.iter().map(|rope| {
            let divisors = match &rope.scaling {
                RopeScaling::Divisors(vector) => load_vector(checkpoint, vector)?,
                _ => Vec::new(),
            };
            Ok(rope.frequencies(&divisors))
        });
        let ropes = ropes.collect::<Result<_, CpuError>>()?;
        Ok(Weights {
            panels: buffer,
            matrices,
            vectors,
            ropes,
        })
    }

    pub fn matrix(&self, id: MatrixId) -> Panels {
        self.matrices[id.0]
    }

    pub fn vector(&self, id: VectorId) -> &[f32] {
        &self.vectors[id.0]
    }

    pub fn ropes(&self) -> &[(Vec<f32>, f32)] {
        &self.ropes
    }

    /// One panel of a matrix.
    pub fn panel(&self, panels: &Panels, index: usize) -> &[u8] {
        &self.panels[panels.start + index * panels.panel_bytes..][..panels.panel_bytes]
    }

    /// Decodes one row of a matrix.
    pub fn row(&self, panels: &Panels, row: usize, out: &mut [f32]) {
        panels
            .panel_type
            .unpack_row(self.panel(panels, row / PANEL_ROWS), row % PANEL_ROWS, out);
    }

    pub fn bytes(&self) -> usize {
        self.panels.len() + self.vectors.iter().map(|vector| vector.len() * 4).sum::<usize>()
    }
}

fn find<'a>(checkpoint: &'a Checkpoint, tensor: &str) -> Result<&'a TensorInfo, CpuError> {
    checkpoint.tensor(tensor).ok_or_else(|| CpuError::MissingTensor {
        tensor: tensor.to_string(),
    })
}

/// Reads and packs a matrix, the threads taking panels one after another.
fn load_matrix(
    checkpoint: &Checkpoint,
    matrix: &Matrix,
    panels: &Panels,
    target: &mut [u8],
    pool: &Pool,
) -> Result<(), CpuError> {
    let info = find(checkpoint, &matrix.tensor)?;
    let failed = Mutex::new(None);
    let tiles = Tiles::new(target, panels.panel_bytes, (1, panels.panel_bytes));
    pool.run(&|_| {
        let mut rows = RowReader::new(checkpoint, info, matrix);
        while let Some(mut tile) = tiles.next() {
            let index = tile.rows().start;
            if let Err(error) = rows.pack_panel(panels, index, tile.row_mut(index)) {
                let mut failed = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                failed.get_or_insert(error);
                return;
            }
        }
    })?;
    match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

/// Reads 16 rows at a time in the order of the forward pass.
struct RowReader<'a> {
    checkpoint: &'a Checkpoint,
    info: &'a TensorInfo,
    matrix: &'a Matrix,
    /// 16 rows as the panel type wants them.
    bytes: Vec<u8>,
    /// One row as f32, for types without panels.
    decoded: Vec<f32>,
}

impl<'a> RowReader<'a> {
    fn new(checkpoint: &'a Checkpoint, info: &'a TensorInfo, matrix: &'a Matrix) -> Self {
        RowReader {
            checkpoint,
            info,
            matrix,
            bytes: Vec::new(),
            decoded: Vec::new(),
        }
    }

    fn pack_panel(&mut self, panels: &Panels, index: usize, target: &mut [u8]) -> Result<(), CpuError> {
        let first = index * PANEL_ROWS;
        let rows = PANEL_ROWS.min(panels.outputs - first);
        let row_bytes = panels.panel_type.row_bytes(panels.k);
        self.bytes.resize(rows * row_bytes, 0);
        let read = if panel_type(self.matrix.dtype).is_some() {
            self.read_stored(first, rows, row_bytes)
        } else {
            self.read_decoded(first, rows, panels.k)
        };
        read.map_err(|source| CpuError::Weights {
            tensor: self.matrix.tensor.clone(),
            source: Box::new(source),
        })?;
        let slices: Vec<&[u8]> = self.bytes.chunks_exact(row_bytes).collect();
        panels.panel_type.pack(&slices, panels.k, target);
        Ok(())
    }

    /// The file's row for a row of this matrix.
    fn source_row(&self, row: usize) -> usize {
        self.matrix.rows.start + self.matrix.order.source(row)
    }

    fn read_stored(
        &mut self,
        first: usize,
        rows: usize,
        row_bytes: usize,
    ) -> Result<(), goldcrest_format::FormatError> {
        if self.matrix.order == RowOrder::Plain {
            let offset = self.source_row(first) as u64 * row_bytes as u64;
            return self.checkpoint.read(self.info, offset, &mut self.bytes);
        }
        for i in 0..rows {
            let offset = self.source_row(first + i) as u64 * row_bytes as u64;
            self.checkpoint
                .read(self.info, offset, &mut self.bytes[i * row_bytes..][..row_bytes])?;
        }
        Ok(())
    }

    fn read_decoded(&mut self, first: usize, rows: usize, k: usize) -> Result<(), goldcrest_format::FormatError> {
        self.decoded.resize(k, 0.0);
        for i in 0..rows {
            self.checkpoint
                .decode_rows(self.info, self.source_row(first + i), &mut self.decoded)?;
            let target = &mut self.bytes[i * k * 4..][..k * 4];
            for (bytes, value) in target.chunks_exact_mut(4).zip(&self.decoded) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        Ok(())
    }
}

fn load_vector(checkpoint: &Checkpoint, vector: &Vector) -> Result<Vec<f32>, CpuError> {
    let info = find(checkpoint, &vector.tensor)?;
    let mut stored = vec![0.0; vector.len];
    checkpoint
        .decode(info, &mut stored)
        .map_err(|source| CpuError::Weights {
            tensor: vector.tensor.clone(),
            source: Box::new(source),
        })?;
    Ok((0..vector.len)
        .map(|i| stored[vector.order.source(i)] + vector.offset)
        .collect())
}
