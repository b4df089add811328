//! The shape of a model, from the `config.json` that it is published with.

use std::path::Path;

use serde::Deserialize;

use super::error::SynthError;
use super::families::{self, Family};

/// Configurations that are here already: as published, without the keys that do not decide a shape.
const PRESETS: [(&str, &str); 6] = [
    ("llama-3.2-1b", include_str!("presets/llama-3.2-1b.json")),
    ("qwen2.5-0.5b", include_str!("presets/qwen2.5-0.5b.json")),
    ("qwen3-30b-a3b", include_str!("presets/qwen3-30b-a3b.json")),
    ("smollm2-135m", include_str!("presets/smollm2-135m.json")),
    ("tiny", include_str!("presets/tiny.json")),
    ("tiny-moe", include_str!("presets/tiny-moe.json")),
];

/// No dimension of a model is larger; products of three fit 64 bits.
const LARGEST: usize = 1 << 21;

#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) family: &'static Family,
    pub(crate) vocabulary: usize,
    pub(crate) hidden: usize,
    /// Width of a dense feed-forward block.
    pub(crate) ffn: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) experts: Option<Experts>,
    pub(crate) context: usize,
    pub(crate) rms_eps: f32,
    pub(crate) rope_base: f32,
    pub(crate) rope_scaling: Option<RopeScaling>,
    /// The head is the embedding.
    pub(crate) tied: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Experts {
    pub(crate) count: usize,
    /// Experts that a token goes through.
    pub(crate) used: usize,
    /// Width of one.
    pub(crate) ffn: usize,
}

/// Llama 3's: frequencies of long waves are divided by `factor`, those between are blended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeScaling {
    factor: f64,
    low_freq_factor: f64,
    high_freq_factor: f64,
    original_context: f64,
}

/// The keys of a `config.json` that decide a shape.
#[derive(Deserialize)]
struct Config {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    rms_norm_eps: f32,
    rope_theta: Option<f32>,
    #[serde(alias = "rope_parameters")]
    rope_scaling: Option<ConfigRope>,
    #[serde(default)]
    tie_word_embeddings: bool,
    num_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

#[derive(Deserialize)]
struct ConfigRope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

pub(crate) fn preset_names() -> String {
    PRESETS.map(|(name, _)| name).join(", ")
}

impl Shape {
    /// Of a preset, or of the configuration in a file.
    pub(crate) fn named(config: &str) -> Result<Shape, SynthError> {
        let preset = PRESETS.iter().find(|(name, _)| *name == config);
        let text = match preset {
            Some((_, text)) => (*text).to_owned(),
            None => std::fs::read_to_string(Path::new(config)).map_err(|error| SynthError::Config {
                config: config.to_owned(),
                error,
            })?,
        };
        Self::parse(config, &text)
    }

    /// From the text of a configuration; `config` names it in errors.
    pub(crate) fn parse(config: &str, text: &str) -> Result<Shape, SynthError> {
        let parsed = serde_json::from_str(text).map_err(|error| SynthError::Json {
            config: config.to_owned(),
            error,
        })?;
        Self::from_config(parsed)
    }

    fn from_config(config: Config) -> Result<Shape, SynthError> {
        let Some(family) = families::by_model_type(&config.model_type) else {
            return Err(SynthError::Family {
                model_type: config.model_type,
            });
        };
        refuse_other_tensors(&config)?;
        let heads = size("num_attention_heads", Some(config.num_attention_heads))?;
        let hidden = size("hidden_size", Some(config.hidden_size))?;
        let rope_theta = config.rope_scaling.as_ref().and_then(|rope| rope.rope_theta);
        let shape = Shape {
            family,
            vocabulary: size("vocab_size", Some(config.vocab_size))?,
            hidden,
            ffn: size("intermediate_size", Some(config.intermediate_size))?,
            layers: size("num_hidden_layers", Some(config.num_hidden_layers))?,
            heads,
            kv_heads: size("num_key_value_heads", config.num_key_value_heads.or(Some(heads)))?,
            head_dim: size("head_dim", config.head_dim.or(Some(hidden / heads)))?,
            experts: experts(&config, family)?,
            context: size("max_position_embeddings", Some(config.max_position_embeddings))?,
            rms_eps: config.rms_norm_eps,
            rope_base: config.rope_theta.or(rope_theta).unwrap_or(10_000.0),
            rope_scaling: config.rope_scaling.as_ref().map_or(Ok(None), rope_scaling)?,
            tied: config.tie_word_embeddings,
        };
        if !shape.heads.is_multiple_of(shape.kv_heads) {
            return Err(refused(
                "num_key_value_heads",
                shape.kv_heads,
                "a divisor of num_attention_heads is needed",
            ));
        }
        if !shape.head_dim.is_multiple_of(2) {
            return Err(refused("head_dim", shape.head_dim, "an even number is needed"));
        }
        Ok(shape)
    }

    /// By what the frequencies of a head's rotation are divided, if by anything.
    pub(crate) fn rope_divisors(&self) -> Option<Vec<f32>> {
        let scaling = self.rope_scaling?;
        let frequency = |pair: usize| libm::pow(f64::from(self.rope_base), -2.0 * pair as f64 / self.head_dim as f64);
        Some(
            (0..self.head_dim / 2)
                .map(|pair| scaling.divisor(frequency(pair)) as f32)
                .collect(),
        )
    }
}

impl RopeScaling {
    /// As `rope_type: llama3` is defined by Hugging Face transformers.
    fn divisor(&self, frequency: f64) -> f64 {
        let waves = self.original_context * frequency / (2.0 * std::f64::consts::PI);
        let blend = (waves - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
        let blend = blend.clamp(0.0, 1.0);
        1.0 / ((1.0 - blend) / self.factor + blend)
    }
}

fn refused(key: &'static str, value: impl ToString, wanted: &str) -> SynthError {
    SynthError::Setting {
        key,
        value: value.to_string(),
        wanted: wanted.to_owned(),
    }
}

fn size(key: &'static str, value: Option<usize>) -> Result<usize, SynthError> {
    match value {
        Some(size) if (1..=LARGEST).contains(&size) => Ok(size),
        Some(size) => Err(refused(key, size, &format!("1 to {LARGEST} is possible"))),
        None => Err(refused(key, "nothing", "the family needs it")),
    }
}

/// Settings that give a model tensors, or leave it without some, in ways that are not written here.
fn refuse_other_tensors(config: &Config) -> Result<(), SynthError> {
    for (key, value) in [("attention_bias", config.attention_bias), ("mlp_bias", config.mlp_bias)] {
        if value {
            return Err(refused(key, value, "such biases are not written"));
        }
    }
    if let Some(step) = config.decoder_sparse_step.filter(|&step| step != 1) {
        return Err(refused("decoder_sparse_step", step, "every layer has experts here"));
    }
    match config.mlp_only_layers.first() {
        Some(layer) => Err(refused("mlp_only_layers", layer, "every layer has experts here")),
        None => Ok(()),
    }
}

fn experts(config: &Config, family: &Family) -> Result<Option<Experts>, SynthError> {
    if !family.experts {
        return match config.num_experts {
            None | Some(0) => Ok(None),
            Some(count) => Err(refused("num_experts", count, "the family has none")),
        };
    }
    let count = size("num_experts", config.num_experts)?;
    let used = size("num_experts_per_tok", config.num_experts_per_tok)?;
    if used > count {
        return Err(refused("num_experts_per_tok", used, "at most num_experts is possible"));
    }
    Ok(Some(Experts {
        count,
        used,
        ffn: size("moe_intermediate_size", config.moe_intermediate_size)?,
    }))
}

fn rope_scaling(config: &ConfigRope) -> Result<Option<RopeScaling>, SynthError> {
    const KEY: &str = "rope_scaling";
    match config.rope_type.as_deref() {
        None | Some("default") => Ok(None),
        Some("llama3") => {
            let number = |value: Option<f64>| match value {
                Some(number) if number > 0.0 => Ok(number),
                _ => Err(refused(
                    KEY,
                    "llama3",
                    "it needs factor, low_freq_factor, high_freq_factor and original_max_position_embeddings, all above 0",
                )),
            };
            let scaling = RopeScaling {
                factor: number(config.factor)?,
                low_freq_factor: number(config.low_freq_factor)?,
                high_freq_factor: number(config.high_freq_factor)?,
                original_context: number(config.original_max_position_embeddings)?,
            };
            if scaling.low_freq_factor >= scaling.high_freq_factor {
                return Err(refused(KEY, "llama3", "low_freq_factor must be below high_freq_factor"));
            }
            Ok(Some(scaling))
        }
        Some(other) => Err(refused(KEY, other, "default and llama3 are possible")),
    }
}
