//! Which type each tensor of a quantised file has: the mixes of llama.cpp's `llama-quantize` without an importance matrix.

use goldcrest_format::DType;

use super::error::SynthError;
use super::shape::Shape;

/// A mix: the type of most tensors, and a rule for those that get another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) name: &'static str,
    /// `general.file_type`.
    pub(crate) file_type: u32,
    main: DType,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One type; a quantised one has a finer head.
    Plain,
    Q2K,
    Q3KM,
    Q3KL,
    Q4KS,
    /// Q4_K_M and Q5_K_M.
    More6Bits,
    Iq4,
    Mxfp4,
}

/// What a matrix does, as far as mixes tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Embedding,
    Head,
    Query,
    Key,
    Value,
    Output,
    GateOrUp,
    Down,
}

/// A matrix (or the matrices of all experts) of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) role: Role,
    pub(crate) layer: usize,
    /// Elements of a row.
    pub(crate) row: usize,
}

const MIXES: [Mix; 20] = {
    use DType::*;
    const fn mix(name: &'static str, file_type: u32, main: DType, kind: Kind) -> Mix {
        Mix {
            name,
            file_type,
            main,
            kind,
        }
    }
    [
        mix("F32", 0, F32, Kind::Plain),
        mix("F16", 1, F16, Kind::Plain),
        mix("BF16", 32, BF16, Kind::Plain),
        mix("Q8_0", 7, Q8_0, Kind::Plain),
        mix("Q4_0", 2, Q4_0, Kind::Plain),
        mix("Q4_1", 3, Q4_1, Kind::Plain),
        mix("Q5_0", 8, Q5_0, Kind::Plain),
        mix("Q5_1", 9, Q5_1, Kind::Plain),
        mix("Q2_K", 10, Q2_K, Kind::Q2K),
        mix("Q3_K_S", 11, Q3_K, Kind::Plain),
        mix("Q3_K_M", 12, Q3_K, Kind::Q3KM),
        mix("Q3_K_L", 13, Q3_K, Kind::Q3KL),
        mix("Q4_K_S", 14, Q4_K, Kind::Q4KS),
        mix("Q4_K_M", 15, Q4_K, Kind::More6Bits),
        mix("Q5_K_S", 16, Q5_K, Kind::Plain),
        mix("Q5_K_M", 17, Q5_K, Kind::More6Bits),
        mix("Q6_K", 18, Q6_K, Kind::Plain),
        mix("IQ4_NL", 25, IQ4_NL, Kind::Iq4),
        mix("IQ4_XS", 30, IQ4_XS, Kind::Iq4),
        mix("MXFP4_MOE", 38, MXFP4, Kind::Mxfp4),
    ]
};

pub(crate) fn names() -> String {
    MIXES.map(|mix| mix.name).join(", ")
}

impl Mix {
    pub(crate) fn named(name: &str) -> Result<Mix, SynthError> {
        let found = MIXES.into_iter().find(|mix| mix.name.eq_ignore_ascii_case(name));
        found.ok_or_else(|| SynthError::Mix { name: name.to_owned() })
    }

    /// The type of a matrix.
    pub(crate) fn dtype(&self, place: Place) -> DType {
        if matches!(self.main, DType::F32 | DType::F16 | DType::BF16) {
            return self.main;
        }
        let is_head = place.role == Role::Head || place.role == Role::Embedding && place.shape.tied;
        let wanted = if self.kind == Kind::Mxfp4 {
            let of_experts = matches!(place.role, Role::GateOrUp | Role::Down) && place.shape.experts.is_some();
            if of_experts { DType::MXFP4 } else { DType::Q8_0 }
        } else if !is_head {
            self.layer_dtype(place)
        } else if self.main == DType::Q8_0 || !place.row.is_multiple_of(self.main.block_elements()) {
            DType::Q8_0
        } else {
            DType::Q6_K
        };
        fitting(wanted, place.row)
    }

    /// The type of a matrix that is no head.
    fn layer_dtype(&self, place: Place) -> DType {
        let shape = place.shape;
        let many_queries = shape.heads / shape.kv_heads >= 4;
        let eight_experts = shape.experts.is_some_and(|experts| experts.count == 8);
        let (layer, layers) = (place.layer, shape.layers);
        match place.role {
            Role::Value | Role::Key if eight_experts => DType::Q8_0,
            Role::Value => match self.kind {
                Kind::Q2K if many_queries => DType::Q4_K,
                Kind::Q2K => DType::Q3_K,
                Kind::Q3KM if layer < 2 => DType::Q5_K,
                Kind::Q3KM => DType::Q4_K,
                Kind::Q3KL => DType::Q5_K,
                Kind::Q4KS if layer < 4 => DType::Q5_K,
                Kind::More6Bits if more_bits(layer, layers) => DType::Q6_K,
                Kind::Iq4 if many_queries => DType::Q5_K,
                _ => self.main,
            },
            Role::Down => match self.kind {
                Kind::Q2K => DType::Q3_K,
                Kind::Q3KM if layer < layers / 16 => DType::Q5_K,
                Kind::Q3KM => DType::Q4_K,
                Kind::Q3KL => DType::Q5_K,
                Kind::Q4KS | Kind::Iq4 if layer < layers / 8 => DType::Q5_K,
                Kind::More6Bits if more_bits(layer, layers) => DType::Q6_K,
                _ => self.main,
            },
            Role::Output if eight_experts => match self.main {
                DType::Q2_K | DType::Q4_K | DType::IQ4_NL | DType::IQ4_XS => DType::Q5_K,
                DType::Q3_K if self.kind != Kind::Q3KL => DType::Q5_K,
                _ => self.main,
            },
            Role::Output => match self.kind {
                Kind::Q2K => DType::Q3_K,
                Kind::Q3KM => DType::Q4_K,
                Kind::Q3KL => DType::Q5_K,
                _ => self.main,
            },
            Role::Embedding | Role::Head | Role::Query | Role::Key | Role::GateOrUp => self.main,
        }
    }
}

/// Layers whose values and second feed-forward matrices get more bits: the first and the last eighth, and every third between.
fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// A type whose blocks fill rows of this length, as near to the wanted one as llama.cpp takes it.
fn fitting(wanted: DType, row: usize) -> DType {
    let fits = |dtype: DType| row.is_multiple_of(dtype.block_elements());
    let smaller = match wanted {
        DType::Q2_K | DType::Q3_K => DType::Q4_0,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        DType::IQ4_XS => DType::IQ4_NL,
        other => other,
    };
    let choices = [wanted, smaller];
    choices.into_iter().find(|&dtype| fits(dtype)).unwrap_or(DType::F16)
}
