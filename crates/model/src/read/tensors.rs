//! Finds a model's tensors by the family's names, checks their shapes, and keeps account of which were used.

use std::collections::HashSet;

use goldcrest_format::{DType, TensorInfo};

use super::SpecError;
use super::keys::{Settings, json_usize};
use crate::families::{Bias, Family, Name, NormFacts};
use crate::spec::{BlockScales, Linear, Matrix, Norm, NormKind, RowOrder, RowSelection, Storage, Vector, VectorMap};

/// Tensors that some files carry and no model needs: buffers that follow from the configuration.
const DERIVED: &[&str] = &[
    "rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    "rope_freqs.weight",
    ".slope_rate",
    ".query_decay",
    ".key_decay",
    ".diagonal_decay",
];

/// How checkpoints name their language model: alone, beside towers for pictures and sound, or not at all.
const PREFIXES: &[(&str, &[&str])] = &[
    ("model.", &["model.", "model.language_model.", "language_model.model."]),
    ("transformer.", &["transformer.", ""]),
];

pub struct Tensors<'a> {
    settings: &'a Settings<'a>,
    family: &'static Family,
    /// A beginning of the family's names, and what stands for it in this checkpoint.
    prefix: (&'static str, &'static str),
    used: HashSet<&'a str>,
    /// Which half of a layer is read, where layers have two.
    pub half: usize,
}

/// A matrix to be found: the rows of a tensor that form it.
#[derive(Clone, Copy)]
pub struct Place {
    pub name: Name,
    pub layer: usize,
    /// Rows and columns of the tensor, leading dimensions flattened into the rows.
    pub shape: [usize; 2],
    pub rows: RowSelection,
    /// The tensor is stored the other way, one column an output; `shape` and `rows` are those of the matrix.
    pub columns: bool,
}

impl Place {
    /// A tensor as it is, `[outputs, inputs]`.
    pub fn whole(name: Name, layer: usize, shape: [usize; 2]) -> Place {
        Place {
            name,
            layer,
            shape,
            rows: RowSelection::all(shape[0]),
            columns: false,
        }
    }

    /// Some rows of a tensor of this shape.
    pub fn part(name: Name, layer: usize, shape: [usize; 2], rows: RowSelection) -> Place {
        Place {
            rows,
            ..Place::whole(name, layer, shape)
        }
    }
}

impl<'a> Tensors<'a> {
    pub fn new(settings: &'a Settings<'a>, family: &'static Family) -> Self {
        let name = family.names.embedding.0;
        let usual = PREFIXES.iter().find(|(usual, _)| name.starts_with(usual));
        let held = |usual: &'static str, other: &'static str| {
            let name = with_prefix(name, (usual, other));
            settings.checkpoint().tensor(&format!("{name}.weight")).is_some()
        };
        let found = usual.and_then(|(usual, others)| Some((*usual, *others.iter().find(|other| held(usual, other))?)));
        Tensors {
            settings,
            family,
            prefix: found.unwrap_or(("", "")),
            used: HashSet::new(),
            half: 0,
        }
    }

    /// The name of layer `layer` in this kind of file; `None` if such files do not have it.
    pub fn spelled(&self, (hf, gguf): Name, layer: usize) -> Option<String> {
        let pattern = if self.settings.is_gguf() {
            gguf.to_owned()
        } else {
            with_prefix(hf, self.prefix)
        };
        let numbered = |name: &str| {
            name.replace("{}", &layer.to_string())
                .replace("{2}", &self.half.to_string())
        };
        let mut spellings = pattern.split('|').map(numbered);
        let first = spellings.next().filter(|name| !name.is_empty())?;
        let held = |name: &String| self.has_named(&format!("{name}.weight"));
        Some(match pattern.contains('|') && !held(&first) {
            true => spellings.find(held).unwrap_or(first),
            false => first,
        })
    }

    fn full_name(&self, name: Name, layer: usize, part: &str) -> String {
        let name = self.spelled(name, layer).unwrap_or_default();
        if part.is_empty() {
            name
        } else {
            format!("{name}.{part}")
        }
    }

    fn info(&self, name: &str) -> Option<&'a TensorInfo> {
        self.settings.checkpoint().tensor(name)
    }

    pub fn has(&self, name: Name, layer: usize, part: &str) -> bool {
        self.info(&self.full_name(name, layer, part)).is_some()
    }

    /// As [`Tensors::ignore`], by the whole name.
    pub fn ignore_named(&mut self, tensor: &str) {
        if let Some(info) = self.info(tensor) {
            self.used.insert(&info.name);
        }
    }

    /// Marks a tensor as known though the model does without it.
    pub fn ignore(&mut self, name: Name, layer: usize, part: &str) {
        if let Some(info) = self.info(&self.full_name(name, layer, part)) {
            self.used.insert(&info.name);
        }
    }

    /// A tensor of this shape, its leading dimensions flattened into the rows; dimensions of 1 count for nothing.
    fn take(&mut self, name: String, shape: &[usize]) -> Result<&'a TensorInfo, SpecError> {
        let Some(info) = self.info(&name) else {
            return Err(SpecError::MissingTensor { tensor: name });
        };
        let last = info.row_elements().max(1);
        let fits = match *shape {
            [rows, cols] => last == cols && info.elements() / last == rows,
            _ => info.elements() == shape.iter().product::<usize>() && info.shape.len() <= shape.len().max(4),
        };
        if !fits {
            return Err(SpecError::BadShape {
                tensor: name,
                found: info.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        self.used.insert(&info.name);
        Ok(info)
    }

    fn take_weights(&mut self, name: String, shape: &[usize]) -> Result<&'a TensorInfo, SpecError> {
        let info = self.take(name, shape)?;
        if !holds_weights(info.dtype) {
            return Err(SpecError::BadType {
                tensor: info.name.clone(),
                dtype: info.dtype.name(),
            });
        }
        Ok(info)
    }

    /// Rows of a matrix, for sizes that only the tensor itself knows.
    pub fn rows(&self, name: Name, layer: usize) -> Result<usize, SpecError> {
        self.shape(name, layer).map(|[rows, _]| rows)
    }

    /// Rows (leading dimensions flattened) and columns of a matrix.
    pub fn shape(&self, name: Name, layer: usize) -> Result<[usize; 2], SpecError> {
        let name = self.full_name(name, layer, "weight");
        let info = self.info(&name);
        let info = info.ok_or_else(|| SpecError::MissingTensor { tensor: name.clone() })?;
        match info.shape.len() {
            2.. => Ok([info.elements() / info.row_elements().max(1), info.row_elements()]),
            _ => Err(SpecError::BadShape {
                tensor: name,
                found: info.shape.clone(),
                expected: vec![],
            }),
        }
    }

    /// Elements of a vector, for sizes that only the tensor itself knows.
    pub fn elements(&self, name: Name, layer: usize, part: &str) -> Result<usize, SpecError> {
        self.elements_named(&self.full_name(name, layer, part))
    }

    /// The matrix named `name`.weight.
    pub fn matrix(&mut self, name: Name, layer: usize, shape: [usize; 2]) -> Result<Matrix, SpecError> {
        self.matrix_of(Place::whole(name, layer, shape))
    }

    pub fn matrix_of(&mut self, place: Place) -> Result<Matrix, SpecError> {
        let name = self.full_name(place.name, place.layer, "weight");
        self.matrix_named(name, place)
    }

    /// The matrix at `place`, of the tensor `tensor`.
    pub fn matrix_named(&mut self, tensor: String, place: Place) -> Result<Matrix, SpecError> {
        let [outputs, cols] = place.shape;
        let shape = if place.columns { [cols, outputs] } else { place.shape };
        let info = self.take_weights(tensor, &shape)?;
        refuse_empty(info)?;
        let scales = match info.dtype {
            DType::F8_E4M3 => Some(self.block_scales(info, shape)?),
            _ => None,
        };
        Ok(Matrix {
            tensor: info.name.clone(),
            dtype: info.dtype,
            rows: place.rows,
            cols,
            order: RowOrder::Plain,
            storage: match place.columns {
                true => Storage::Columns { first_input: 0 },
                false => Storage::Rows,
            },
            scales,
        })
    }

    /// The factors of an FP8 matrix: one for each block of the size that the configuration gives.
    fn block_scales(&mut self, info: &TensorInfo, [rows, cols]: [usize; 2]) -> Result<BlockScales, SpecError> {
        const KEY: &str = "quantization_config.weight_block_size";
        let missing = || SpecError::MissingKey { key: KEY.into() };
        let block = self
            .settings
            .hf("quantization_config")
            .and_then(|c| c.get("weight_block_size"));
        let block = block.and_then(|block| block.as_array()).ok_or_else(missing)?;
        let side = |i: usize| json_usize(KEY, block.get(i).ok_or_else(missing)?);
        let block = [side(0)?, side(1)?];
        if block.contains(&0) {
            return Err(SpecError::BadValue {
                key: KEY.into(),
                value: format!("{block:?}"),
                expected: "sizes above zero".into(),
            });
        }
        let scales = format!("{}_scale_inv", info.name);
        let shape = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
        self.take_weights(scales.clone(), &shape)?;
        Ok(BlockScales { tensor: scales, block })
    }

    pub fn vector(&mut self, name: Name, layer: usize, part: &str, len: usize) -> Result<Vector, SpecError> {
        self.vector_of(name, layer, part, (len, RowSelection::all(len)))
    }

    /// As [`Tensors::vector_named`].
    pub fn vector_of(
        &mut self,
        name: Name,
        layer: usize,
        part: &str,
        place: (usize, RowSelection),
    ) -> Result<Vector, SpecError> {
        self.vector_named(self.full_name(name, layer, part), place)
    }

    pub fn has_named(&self, tensor: &str) -> bool {
        self.info(tensor).is_some()
    }

    fn found(&self, tensor: &str) -> Result<&'a TensorInfo, SpecError> {
        self.info(tensor)
            .ok_or_else(|| SpecError::MissingTensor { tensor: tensor.into() })
    }

    pub fn rows_named(&self, tensor: &str) -> Result<usize, SpecError> {
        self.found(tensor)
            .map(|info| info.elements() / info.row_elements().max(1))
    }

    pub fn elements_named(&self, tensor: &str) -> Result<usize, SpecError> {
        self.found(tensor).map(TensorInfo::elements)
    }

    /// The projection `tensor`.weight, with `tensor`.bias if there is one.
    pub fn linear_named(&mut self, tensor: &str, place: Place) -> Result<Linear, SpecError> {
        let weight = self.matrix_named(format!("{tensor}.weight"), place)?;
        let bias = format!("{tensor}.bias");
        let bias = match self.has_named(&bias) {
            true => Some(self.vector_named(bias, (place.shape[0], place.rows))?),
            false => None,
        };
        Ok(Linear { weight, bias })
    }

    /// The elements `elements` of the tensor `tensor`, a vector of `len` or anything else with as many elements.
    pub fn vector_named(
        &mut self,
        tensor: String,
        (len, elements): (usize, RowSelection),
    ) -> Result<Vector, SpecError> {
        let info = self.take_weights(tensor, &[len])?;
        Ok(Vector {
            elements,
            ..Vector::whole(info.name.clone(), len)
        })
    }

    /// Refuses a tensor of all experts that is not `[experts, …]` as given; of one expert, it may lack that dimension.
    pub fn check_experts(&self, tensor: &str, shape: &[usize]) -> Result<(), SpecError> {
        let found = &self.found(tensor)?.shape;
        match found == shape || shape.strip_prefix(&[1]).is_some_and(|alone| found == alone) {
            true => Ok(()),
            false => Err(SpecError::BadShape {
                tensor: tensor.into(),
                found: found.clone(),
                expected: shape.to_vec(),
            }),
        }
    }

    /// Matrices of experts in MXFP4 as Hugging Face stores them, one below the other: `blocks` of `[experts, rows, cols / 32, 16]`, each
    /// byte two nibbles, and `scales` of `[experts, rows, cols / 32]`, each an exponent.
    pub fn mxfp4_matrix(&mut self, blocks: &str, scales: &str, shape: [usize; 3]) -> Result<Matrix, SpecError> {
        let [experts, rows, cols] = shape;
        self.check_experts(blocks, &[experts, rows, cols.div_ceil(32), 16])?;
        self.check_experts(scales, &[experts, rows, cols.div_ceil(32)])?;
        let rows = experts * rows;
        let info = self.take(blocks.into(), &[rows * cols / 2])?;
        let exponents = self.take(scales.into(), &[rows * cols / 32])?;
        for info in [info, exponents] {
            refuse_empty(info)?;
            if info.dtype != DType::U8 {
                return Err(SpecError::BadType {
                    tensor: info.name.clone(),
                    dtype: info.dtype.name(),
                });
            }
        }
        Ok(Matrix {
            tensor: info.name.clone(),
            dtype: DType::MXFP4,
            rows: RowSelection::all(rows),
            cols,
            order: RowOrder::Plain,
            storage: Storage::Mxfp4 {
                scales: exponents.name.clone(),
            },
            scales: None,
        })
    }

    /// A norm of each of `heads` heads, whose weights are tensors of their own.
    pub fn norm_of_heads(
        &mut self,
        name: Name,
        layer: usize,
        (heads, dim): (usize, usize),
        (kind, eps): (NormKind, f64),
    ) -> Result<Norm, SpecError> {
        let pattern = self.full_name(name, layer, "weight");
        let mut tensors = Vec::with_capacity(heads);
        for head in 0..heads {
            let info = self.take_weights(pattern.replace("{h}", &head.to_string()), &[dim])?;
            tensors.push(info.name.clone());
        }
        Ok(Norm {
            kind,
            weight: Some(Vector {
                tensors,
                elements: RowSelection::all(heads * dim),
                order: RowOrder::Plain,
                map: VectorMap::Plain,
            }),
            bias: None,
            eps: eps as f32,
        })
    }

    /// A vector that may be absent.
    pub fn opt_vector(
        &mut self,
        name: Name,
        layer: usize,
        part: &str,
        len: usize,
    ) -> Result<Option<Vector>, SpecError> {
        if self.has(name, layer, part) {
            self.vector(name, layer, part, len).map(Some)
        } else {
            Ok(None)
        }
    }

    pub fn linear(&mut self, name: Name, layer: usize, shape: [usize; 2], bias: Bias) -> Result<Linear, SpecError> {
        self.linear_of(Place::whole(name, layer, shape), bias)
    }

    /// The projection at `place`, with the same rows of its bias.
    pub fn linear_of(&mut self, place: Place, bias: Bias) -> Result<Linear, SpecError> {
        let weight = self.matrix_of(place)?;
        let needed = match bias {
            Bias::Stored => false,
            Bias::Always => true,
            Bias::Key(key) => self.settings.opt_bool(key)?.unwrap_or(false),
        };
        let bias = if needed || self.has(place.name, place.layer, "bias") {
            Some(self.vector_of(place.name, place.layer, "bias", (place.shape[0], place.rows))?)
        } else {
            None
        };
        Ok(Linear { weight, bias })
    }

    /// A norm over `len` elements of the stream, with a bias if the file has one.
    pub fn norm(&mut self, name: Name, layer: usize, len: usize) -> Result<Norm, SpecError> {
        let NormFacts { kind, eps, .. } = self.family.norm;
        self.norm_of(name, layer, len, (kind, self.settings.norm_eps(eps)?))
    }

    pub fn norm_of(
        &mut self,
        name: Name,
        layer: usize,
        len: usize,
        (kind, eps): (NormKind, f64),
    ) -> Result<Norm, SpecError> {
        // Falcon-H1's converter leaves `.weight` out once.
        let bare = self.settings.is_gguf() && !self.has(name, layer, "weight") && self.has(name, layer, "");
        let mut weight = self.vector(name, layer, if bare { "" } else { "weight" }, len)?;
        if self.family.norm.one_plus && !self.settings.is_gguf() {
            weight.map = VectorMap::PlusOne;
        }
        Ok(Norm {
            kind,
            weight: Some(weight),
            bias: self.opt_vector(name, layer, "bias", len)?,
            eps: eps as f32,
        })
    }

    /// The number that a tensor of one element holds.
    pub fn scalar(&mut self, name: Name, layer: usize, part: &str) -> Result<f32, SpecError> {
        let info = self.take_weights(self.full_name(name, layer, part), &[1])?;
        let mut value = [0.0];
        self.settings
            .checkpoint()
            .decode(info, &mut value)
            .map_err(|source| SpecError::Unreadable {
                tensor: info.name.clone(),
                source: Box::new(source),
            })?;
        Ok(value[0])
    }

    /// A vector that a GGUF file may carry under a name without a layer.
    pub fn opt_gguf_vector(&mut self, name: &'static str, len: usize) -> Result<Option<Vector>, SpecError> {
        if !self.settings.is_gguf() {
            return Ok(None);
        }
        self.opt_vector(("", name), 0, "", len)
    }

    /// A tensor without a place means a feature that would be silently ignored.
    pub fn refuse_unused(&self) -> Result<(), SpecError> {
        let layers = self.settings.layers().unwrap_or(usize::MAX);
        let further = |name: &str| {
            let layer = ["model.layers.", "blk."]
                .iter()
                .find_map(|start| name.strip_prefix(start));
            let layer = layer
                .and_then(|rest| rest.split('.').next())
                .and_then(|n| n.parse::<usize>().ok());
            layer.is_some_and(|layer| layer >= layers)
        };
        let unused = |info: &&TensorInfo| {
            let name = info.name.as_str();
            !self.used.contains(name)
                && !DERIVED.iter().any(|end| name.ends_with(end))
                && !self.family.ignored.iter().any(|start| name.starts_with(start))
                && !further(name)
        };
        match self.settings.checkpoint().tensors().find(unused) {
            None => Ok(()),
            Some(info) => Err(SpecError::UnusedTensor {
                tensor: info.name.clone(),
                family: self.family.name,
            }),
        }
    }
}

/// A matrix has rows and columns.
fn refuse_empty(info: &TensorInfo) -> Result<(), SpecError> {
    match info.shape.contains(&0) {
        false => Ok(()),
        true => Err(SpecError::BadShape {
            tensor: info.name.clone(),
            found: info.shape.clone(),
            expected: info.shape.iter().map(|&size| size.max(1)).collect(),
        }),
    }
}

fn with_prefix(name: &str, (usual, here): (&str, &str)) -> String {
    // A head beside a language model that is a part of the checkpoint.
    if name == "lm_head" && here == "language_model.model." {
        return "language_model.lm_head".to_owned();
    }
    match name.strip_prefix(usual) {
        Some(rest) => format!("{here}{rest}"),
        None => name.to_owned(),
    }
}

fn holds_weights(dtype: DType) -> bool {
    !matches!(
        dtype,
        DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64
            | DType::BOOL
    )
}
