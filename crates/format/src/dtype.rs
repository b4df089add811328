//! The storage types that a file can name, and their layout.

use std::fmt;

/// How the elements of a tensor are stored.
///
/// Plain types are blocks of one element. `F8_E4M3` is the finite variant (no infinity, NaN at 0x7F and 0xFF).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    F8_E4M3,
    F8_E5M2,
    F8_E8M0,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    BOOL,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
}

/// Why a type or a size was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DTypeError {
    /// The ggml type id is known by name but has no layout that this crate reads.
    #[error("type {name} (ggml id {id}) is not supported: {reason}")]
    Refused {
        /// The id in the file.
        id: u32,
        /// The published name of the type.
        name: &'static str,
        /// Why it is refused, and what to do.
        reason: &'static str,
    },
    /// The ggml type id is not published.
    #[error("ggml type id {id} is unknown: the file is newer than this program or damaged")]
    UnknownId {
        /// The id in the file.
        id: u32,
    },
    /// The safetensors type has no meaning here.
    #[error("safetensors type {name} is not supported: convert the tensor to F32, F16, BF16 or F8_E4M3")]
    UnknownName {
        /// The name in the file.
        name: String,
    },
    /// A number of elements that does not fill whole blocks.
    #[error("{elements} elements are not whole blocks of {dtype} ({block} elements each)")]
    PartialBlock {
        /// The storage type.
        dtype: DType,
        /// Elements asked for.
        elements: u64,
        /// Elements in a block.
        block: usize,
    },
    /// The size in bytes does not fit 64 bits.
    #[error("the size of {elements} elements of {dtype} overflows")]
    Overflow {
        /// The storage type.
        dtype: DType,
        /// Elements asked for.
        elements: u64,
    },
}

impl DType {
    /// Every type, in the order of the enum.
    pub const ALL: [DType; 40] = {
        use DType::*;
        [
            F64, F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0, I8, I16, I32, I64, U8, U16, U32, U64, BOOL, Q4_0, Q4_1,
            Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S,
            IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4,
        ]
    };

    /// Name, elements in a block, bytes of a block.
    const fn layout(self) -> (&'static str, usize, usize) {
        match self {
            DType::F64 => ("F64", 1, 8),
            DType::F32 => ("F32", 1, 4),
            DType::F16 => ("F16", 1, 2),
            DType::BF16 => ("BF16", 1, 2),
            DType::F8_E4M3 => ("F8_E4M3", 1, 1),
            DType::F8_E5M2 => ("F8_E5M2", 1, 1),
            DType::F8_E8M0 => ("F8_E8M0", 1, 1),
            DType::I8 => ("I8", 1, 1),
            DType::I16 => ("I16", 1, 2),
            DType::I32 => ("I32", 1, 4),
            DType::I64 => ("I64", 1, 8),
            DType::U8 => ("U8", 1, 1),
            DType::U16 => ("U16", 1, 2),
            DType::U32 => ("U32", 1, 4),
            DType::U64 => ("U64", 1, 8),
            DType::BOOL => ("BOOL", 1, 1),
            DType::Q4_0 => ("Q4_0", 32, 18),
            DType::Q4_1 => ("Q4_1", 32, 20),
            DType::Q5_0 => ("Q5_0", 32, 22),
            DType::Q5_1 => ("Q5_1", 32, 24),
            DType::Q8_0 => ("Q8_0", 32, 34),
            DType::Q2_K => ("Q2_K", 256, 84),
            DType::Q3_K => ("Q3_K", 256, 110),
            DType::Q4_K => ("Q4_K", 256, 144),
            DType::Q5_K => ("Q5_K", 256, 176),
            DType::Q6_K => ("Q6_K", 256, 210),
            DType::Q8_K => ("Q8_K", 256, 292),
            DType::IQ1_S => ("IQ1_S", 256, 50),
            DType::IQ1_M => ("IQ1_M", 256, 56),
            DType::IQ2_XXS => ("IQ2_XXS", 256, 66),
            DType::IQ2_XS => ("IQ2_XS", 256, 74),
            DType::IQ2_S => ("IQ2_S", 256, 82),
            DType::IQ3_XXS => ("IQ3_XXS", 256, 98),
            DType::IQ3_S => ("IQ3_S", 256, 110),
            DType::IQ4_NL => ("IQ4_NL", 32, 18),
            DType::IQ4_XS => ("IQ4_XS", 256, 136),
            DType::TQ1_0 => ("TQ1_0", 256, 54),
            DType::TQ2_0 => ("TQ2_0", 256, 66),
            DType::MXFP4 => ("MXFP4", 32, 17),
            DType::NVFP4 => ("NVFP4", 64, 36),
        }
    }

    /// The published name, as in the file formats.
    pub const fn name(self) -> &'static str {
        self.layout().0
    }

    /// Elements in one block (1 for plain types).
    pub const fn block_elements(self) -> usize {
        self.layout().1
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.layout().2
    }

    /// Bytes of `elements` elements, which must fill whole blocks.
    pub fn bytes(self, elements: u64) -> Result<u64, DTypeError> {
        let block = self.block_elements();
        if !elements.is_multiple_of(block as u64) {
            return Err(DTypeError::PartialBlock {
                dtype: self,
                elements,
                block,
            });
        }
        (elements / block as u64)
            .checked_mul(self.block_bytes() as u64)
            .ok_or(DTypeError::Overflow { dtype: self, elements })
    }

    /// The type with this id in a GGUF tensor table.
    pub fn from_ggml_id(id: u32) -> Result<DType, DTypeError> {
        const REMOVED: &str = "it was removed from the format: convert the model again from its original";
        const INTERMEDIATE: &str = "it is an intermediate of computation and is not stored in model files";
        const NO_LAYOUT: &str = "its decoding is not published yet: use another quantisation of the model";
        let refused = |name, reason| Err(DTypeError::Refused { id, name, reason });
        Ok(match id {
            0 => DType::F32,
            1 => DType::F16,
            2 => DType::Q4_0,
            3 => DType::Q4_1,
            4 => return refused("Q4_2", REMOVED),
            5 => return refused("Q4_3", REMOVED),
            6 => DType::Q5_0,
            7 => DType::Q5_1,
            8 => DType::Q8_0,
            9 => return refused("Q8_1", INTERMEDIATE),
            10 => DType::Q2_K,
            11 => DType::Q3_K,
            12 => DType::Q4_K,
            13 => DType::Q5_K,
            14 => DType::Q6_K,
            15 => DType::Q8_K,
            16 => DType::IQ2_XXS,
            17 => DType::IQ2_XS,
            18 => DType::IQ3_XXS,
            19 => DType::IQ1_S,
            20 => DType::IQ4_NL,
            21 => DType::IQ3_S,
            22 => DType::IQ2_S,
            23 => DType::IQ4_XS,
            24 => DType::I8,
            25 => DType::I16,
            26 => DType::I32,
            27 => DType::I64,
            28 => DType::F64,
            29 => DType::IQ1_M,
            30 => DType::BF16,
            31 => return refused("Q4_0_4_4", REMOVED),
            32 => return refused("Q4_0_4_8", REMOVED),
            33 => return refused("Q4_0_8_8", REMOVED),
            34 => DType::TQ1_0,
            35 => DType::TQ2_0,
            36 => return refused("IQ4_NL_4_4", REMOVED),
            37 => return refused("IQ4_NL_4_8", REMOVED),
            38 => return refused("IQ4_NL_8_8", REMOVED),
            39 => DType::MXFP4,
            40 => DType::NVFP4,
            41 => return refused("Q1_0", NO_LAYOUT),
            _ => return Err(DTypeError::UnknownId { id }),
        })
    }

    /// The type with this name in a safetensors header.
    pub fn from_safetensors_name(name: &str) -> Result<DType, DTypeError> {
        Ok(match name {
            "F64" => DType::F64,
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            "F8_E4M3" => DType::F8_E4M3,
            "F8_E5M2" => DType::F8_E5M2,
            "F8_E8M0" => DType::F8_E8M0,
            "I8" => DType::I8,
            "I16" => DType::I16,
            "I32" => DType::I32,
            "I64" => DType::I64,
            "U8" => DType::U8,
            "U16" => DType::U16,
            "U32" => DType::U32,
            "U64" => DType::U64,
            "BOOL" => DType::BOOL,
            _ => return Err(DTypeError::UnknownName { name: name.to_owned() }),
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked() {
        assert_eq!(DType::Q4_K.bytes(512), Ok(288));
        assert_eq!(DType::F32.bytes(0), Ok(0));
        let partial = DTypeError::PartialBlock {
            dtype: DType::Q8_0,
            elements: 33,
            block: 32,
        };
        assert_eq!(DType::Q8_0.bytes(33), Err(partial));
        let overflow = DTypeError::Overflow {
            dtype: DType::F64,
            elements: 1 << 61,
        };
        assert_eq!(DType::F64.bytes(1 << 61), Err(overflow));
    }

    #[test]
    fn names_are_unique_and_blocks_whole() {
        for (i, dtype) in DType::ALL.iter().enumerate() {
            assert!(dtype.block_elements().is_power_of_two(), "{dtype}");
            assert!(
                DType::ALL[..i].iter().all(|other| other.name() != dtype.name()),
                "{dtype}"
            );
        }
    }

    #[test]
    fn ids_outside_the_table_are_refused_by_name() {
        for (id, wanted) in [
            (4, "Q4_2"),
            (9, "Q8_1"),
            (31, "Q4_0_4_4"),
            (38, "IQ4_NL_8_8"),
            (41, "Q1_0"),
        ] {
            match DType::from_ggml_id(id) {
                Err(DTypeError::Refused { name, .. }) => assert_eq!(name, wanted),
                other => panic!("id {id}: {other:?}"),
            }
        }
        assert_eq!(DType::from_ggml_id(1000), Err(DTypeError::UnknownId { id: 1000 }));
        assert!(DType::from_safetensors_name("F8_E4M3FNUZ").is_err());
    }
}
