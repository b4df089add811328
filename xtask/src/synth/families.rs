//! The families whose files can be written.

/// What a family's files have, beyond the settings of their configuration.
#[derive(Debug)]
pub(crate) struct Family {
    /// `model_type` of a `config.json`.
    pub(crate) model_type: &'static str,
    /// `general.architecture`, with which the keys of settings begin.
    pub(crate) architecture: &'static str,
    /// Feed-forward blocks are mixtures of experts.
    pub(crate) experts: bool,
    /// Heads of queries and keys are normed.
    pub(crate) head_norms: bool,
    /// Queries, keys and values have a bias.
    pub(crate) qkv_bias: bool,
}

const LLAMA: Family = Family {
    model_type: "llama",
    architecture: "llama",
    experts: false,
    head_norms: false,
    qkv_bias: false,
};

const QWEN3: Family = Family {
    model_type: "qwen3",
    architecture: "qwen3",
    head_norms: true,
    ..LLAMA
};

const ALL: [&Family; 4] = [
    &LLAMA,
    &Family {
        model_type: "qwen2",
        architecture: "qwen2",
        qkv_bias: true,
        ..LLAMA
    },
    &QWEN3,
    &Family {
        model_type: "qwen3_moe",
        architecture: "qwen3moe",
        experts: true,
        ..QWEN3
    },
];

pub(crate) fn by_model_type(model_type: &str) -> Option<&'static Family> {
    ALL.into_iter().find(|family| family.model_type == model_type)
}

/// Every `model_type` there is.
pub(crate) fn model_types() -> String {
    ALL.map(|family| family.model_type).join(", ")
}
