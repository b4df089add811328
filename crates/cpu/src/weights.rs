//! A checkpoint's weights in memory: matrices repacked into panels of 16 rows in one huge-page buffer, vectors as f32.

mod columns;
pub mod load;
mod mxfp4;
mod rows;
mod scales;
#[cfg(test)]
mod tests;
pub mod window;

use std::borrow::Cow;
use std::ops::Range;

use goldcrest_format::blocks::BlockError;
use goldcrest_format::{DType, FormatError, TensorFiles, TensorInfo};
use goldcrest_kernels::{PANEL_ROWS, PanelType};
use goldcrest_model::plan::{MatrixId, Plan, VectorId};
use goldcrest_model::spec::{Matrix, Rope, Storage, Vector, VectorMap};

use crate::CpuError;
use crate::buffer::HugeBuffer;
use crate::pool::Pool;

pub use load::CachedPages;

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
        DType::Q5_1 => PanelType::Q5_1,
        DType::Q2_K => PanelType::Q2_K,
        DType::Q3_K => PanelType::Q3_K,
        DType::Q4_K => PanelType::Q4_K,
        DType::Q5_K => PanelType::Q5_K,
        DType::Q6_K => PanelType::Q6_K,
        DType::IQ1_S | DType::IQ1_M => PanelType::IQ1,
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => PanelType::IQ2,
        DType::IQ3_XXS => PanelType::IQ3_XXS,
        DType::IQ3_S => PanelType::IQ3_S,
        DType::IQ4_NL => PanelType::IQ4_NL,
        DType::IQ4_XS => PanelType::IQ4_XS,
        DType::TQ1_0 => PanelType::TQ1_0,
        DType::TQ2_0 => PanelType::TQ2_0,
        DType::MXFP4 => PanelType::MXFP4,
        DType::NVFP4 => PanelType::NVFP4,
        _ => return None,
    })
}

/// The panel type of a matrix whose elements are not decoded; `None`: they are.
fn stored_panel_type(matrix: &Matrix) -> Option<PanelType> {
    match matrix.storage {
        Storage::Mxfp4 { .. } => Some(PanelType::MXFP4),
        Storage::Rows if matrix.scales.is_none() => panel_type(matrix.dtype),
        Storage::Rows | Storage::Columns { .. } => None,
    }
}

/// The panel type that a matrix is held in.
fn loaded_panel_type(matrix: &Matrix) -> PanelType {
    match matrix.storage {
        // Columns are gathered element by element; what was BF16 is again.
        Storage::Columns { .. } if matrix.dtype == DType::BF16 && matrix.scales.is_none() => PanelType::BF16,
        _ => stored_panel_type(matrix).unwrap_or(PanelType::F32),
    }
}

/// All weights of a plan.
pub struct Weights {
    panels: HugeBuffer<u8>,
    matrices: Vec<Panels>,
    vectors: Vec<Vec<f32>>,
    ropes: Vec<RopeTable>,
}

/// inv_freq of a rope, with the factor of cos and sin.
type Frequencies = (Vec<f32>, f32);

/// The frequencies of one rope.
pub enum RopeTable {
    Fixed(Frequencies),
    /// They depend on the length of the sequence; beside the rope, the divisors of short and of long sequences.
    ByLength {
        rope: Box<Rope>,
        divisors: Vec<(Vector, Vec<f32>)>,
    },
}

impl RopeTable {
    fn load(rope: &Rope, files: &TensorFiles) -> Result<RopeTable, CpuError> {
        // All regimes of a rope show at one of these lengths.
        let stored: Vec<&Vector> = [0, usize::MAX]
            .into_iter()
            .filter_map(|length| rope.divisors(length))
            .collect();
        let mut divisors = Vec::with_capacity(stored.len());
        for vector in stored {
            divisors.push((vector.clone(), load_vector(files, vector)?));
        }
        if rope.depends_on_length() {
            let rope = Box::new(rope.clone());
            return Ok(RopeTable::ByLength { rope, divisors });
        }
        let values = divisors.first().map_or(&[][..], |(_, values)| values);
        Ok(RopeTable::Fixed(rope.frequencies(0, values)))
    }

    /// The frequencies in sequences of at most `length` positions.
    pub fn frequencies(&self, length: usize) -> Cow<'_, Frequencies> {
        match self {
            RopeTable::Fixed(frequencies) => Cow::Borrowed(frequencies),
            RopeTable::ByLength { rope, divisors } => {
                let wanted = rope.divisors(length);
                let values = divisors.iter().find(|(vector, _)| Some(vector) == wanted);
                let values = values.map_or(&[][..], |(_, values)| values);
                Cow::Owned(rope.frequencies(length, values))
            }
        }
    }
}

/// Where a matrix lies in the buffer, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    pub panel_type: PanelType,
    pub outputs: usize,
    /// Inputs.
    pub k: usize,
    pub panel_bytes: usize,
    /// Of resident ones.
    start: Option<usize>,
}

impl Panels {
    /// Those of a matrix, wherever they lie.
    pub fn of(matrix: &Matrix) -> Panels {
        Panels::unplaced(loaded_panel_type(matrix), matrix.outputs(), matrix.cols)
    }

    /// Panels that are not resident.
    pub fn unplaced(panel_type: PanelType, outputs: usize, k: usize) -> Panels {
        Panels {
            panel_type,
            outputs,
            k,
            panel_bytes: panel_type.panel_bytes(k),
            start: None,
        }
    }

    /// Of those of a whole matrix the ones of some outputs, which begin with a panel.
    pub fn of_columns(&self, outputs: Range<usize>) -> Panels {
        Panels::unplaced(self.panel_type, outputs.len(), self.k)
    }

    pub fn count(&self) -> usize {
        self.outputs.div_ceil(PANEL_ROWS)
    }

    /// Bytes of memory, the last panel in full.
    pub fn bytes(&self) -> u64 {
        (self.count() * self.panel_bytes) as u64
    }

    /// Whether they are in memory from the start to the end.
    pub fn is_resident(&self) -> bool {
        self.start.is_some()
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        (self.panel_bytes / PANEL_ROWS) as u64
    }

    /// Multiplications and additions of a product with one row.
    pub fn operations(&self) -> u64 {
        2 * (self.outputs * self.k) as u64
    }
}

impl Weights {
    /// Loads what a plan needs; of the matrices that are `streamed` only their shapes are kept.
    pub fn load(
        plan: &Plan,
        files: &TensorFiles,
        (pool, cached): (&Pool, CachedPages),
        streamed: &dyn Fn(MatrixId) -> bool,
    ) -> Result<Weights, CpuError> {
        let mut weights = Self::load_matrices(files, &plan.matrices, (pool, cached), streamed)?;
        let vectors = plan.vectors.iter().map(|vector| load_vector(files, vector));
        weights.vectors = vectors.collect::<Result<_, _>>()?;
        let ropes = plan.ropes.iter().map(|rope| RopeTable::load(rope, files));
        weights.ropes = ropes.collect::<Result<_, _>>()?;
        Ok(weights)
    }

    /// [`Weights::bytes`] of what [`Weights::load`] would load.
    pub fn bytes_of(plan: &Plan, streamed: &dyn Fn(MatrixId) -> bool) -> usize {
        let (_, bytes) = place(&plan.matrices, streamed);
        let vectors = plan
            .vectors
            .iter()
            .map(|vector| vector.len().saturating_mul(size_of::<f32>()));
        vectors.fold(bytes, usize::saturating_add)
    }

    /// Without vectors and ropes.
    fn load_matrices(
        files: &TensorFiles,
        matrices: &[Matrix],
        (pool, cached): (&Pool, CachedPages),
        streamed: &dyn Fn(MatrixId) -> bool,
    ) -> Result<Weights, CpuError> {
        let (all, bytes) = place(matrices, streamed);
        let mut memory = HugeBuffer::zeroed(bytes)?;
        let resident = all.iter().zip(matrices).filter(|(panels, _)| panels.start.is_some());
        let (panels, matrices): (Vec<Panels>, Vec<&Matrix>) = resident.unzip();
        load::load_matrices(files, &matrices, &panels, &mut memory, (pool, cached))?;
        Ok(Weights {
            panels: memory,
            matrices: all,
            vectors: Vec::new(),
            ropes: Vec::new(),
        })
    }

    pub fn matrix(&self, id: MatrixId) -> Panels {
        self.matrices[id.0]
    }

    pub fn vector(&self, id: VectorId) -> &[f32] {
        &self.vectors[id.0]
    }

    pub fn ropes(&self) -> &[RopeTable] {
        &self.ropes
    }

    /// All panels of a resident matrix.
    pub fn resident(&self, panels: &Panels) -> &[u8] {
        let start = panels.start.expect("a streamed matrix is not asked for here");
        &self.panels[start..][..panels.count() * panels.panel_bytes]
    }

    /// Decodes one row of a resident matrix.
    pub fn row(&self, panels: &Panels, row: usize, out: &mut [f32]) {
        let panel = &self.resident(panels)[row / PANEL_ROWS * panels.panel_bytes..][..panels.panel_bytes];
        panels.panel_type.unpack_row(panel, row % PANEL_ROWS, out);
    }

    pub fn bytes(&self) -> usize {
        self.panels.len() + self.vectors.iter().map(|vector| vector.len() * 4).sum::<usize>()
    }
}

/// The panels of all matrices, those that are not `streamed` one after the other, and the bytes of these.
fn place(matrices: &[Matrix], streamed: &dyn Fn(MatrixId) -> bool) -> (Vec<Panels>, usize) {
    let mut bytes = 0_usize;
    let mut all = Vec::with_capacity(matrices.len());
    for (id, matrix) in matrices.iter().enumerate() {
        let mut panels = Panels::of(matrix);
        if !streamed(MatrixId(id)) {
            panels.start = Some(bytes);
            // Saturated, so that a size beyond the address space is refused by the allocation.
            bytes = bytes.saturating_add(panels.count().saturating_mul(panels.panel_bytes));
        }
        all.push(panels);
    }
    (all, bytes)
}

pub(crate) fn decode(files: &TensorFiles, info: &TensorInfo, out: &mut [f32]) -> Result<(), CpuError> {
    files.decode(info, out).map_err(|source| weights_error(info, source))
}

pub(crate) fn weights_error(info: &TensorInfo, source: FormatError) -> CpuError {
    CpuError::Weights {
        tensor: info.name.clone(),
        source: Box::new(source),
    }
}

fn decode_error(info: &TensorInfo, error: BlockError) -> FormatError {
    FormatError::Decode {
        name: info.name.clone(),
        offset: info.offset,
        error,
    }
}

pub(crate) fn find<'a>(files: &'a TensorFiles, tensor: &str) -> Result<&'a TensorInfo, CpuError> {
    files.tensor(tensor).ok_or_else(|| CpuError::MissingTensor {
        tensor: tensor.to_string(),
    })
}

fn load_vector(files: &TensorFiles, vector: &Vector) -> Result<Vec<f32>, CpuError> {
    let mut stored = Vec::new();
    for tensor in &vector.tensors {
        let info = find(files, tensor)?;
        let start = stored.len();
        stored.resize(start + info.elements(), 0.0);
        decode(files, info, &mut stored[start..])?;
    }
    let map = |x: f32| match vector.map {
        VectorMap::Plain => x,
        VectorMap::PlusOne => x + 1.0,
        VectorMap::NegativeExp => -libm::exp(f64::from(x)) as f32,
        VectorMap::Times(factor) => x * factor,
    };
    Ok((0..vector.len()).map(|i| map(stored[vector.source(i)])).collect())
}
