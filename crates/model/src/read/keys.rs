//! One name for a setting that two kinds of file spell differently.

use goldcrest_format::{Checkpoint, Config};
use serde_json::Value;

use super::SpecError;

/// A setting's spellings: the aliases of Hugging Face configs, and the key of GGUF below the architecture's prefix.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub hf: &'static [&'static str],
    /// Empty: GGUF files do not carry it.
    pub gguf: &'static str,
}

const fn key(hf: &'static [&'static str], gguf: &'static str) -> Key {
    Key { hf, gguf }
}

pub const VOCABULARY: Key = key(&["vocab_size"], "vocab_size");
pub const HIDDEN: Key = key(&["hidden_size", "n_embd"], "embedding_length");
pub const CONTEXT: Key = key(&["max_position_embeddings", "n_positions"], "context_length");
pub const LAYERS: Key = key(&["num_hidden_layers", "n_layer"], "block_count");
pub const FFN: Key = key(&["intermediate_size", "n_inner"], "feed_forward_length");
pub const HEADS: Key = key(&["num_attention_heads", "n_head"], "attention.head_count");
pub const KV_HEADS: Key = key(&["num_key_value_heads"], "attention.head_count_kv");
pub const HEAD_DIM: Key = key(&["head_dim"], "attention.key_length");
pub const RMS_EPS: Key = key(&["rms_norm_eps"], "attention.layer_norm_rms_epsilon");
pub const ACTIVATION: Key = key(&["hidden_act", "hidden_activation"], "");
pub const ATTENTION_BIAS: Key = key(&["attention_bias"], "");
pub const MLP_BIAS: Key = key(&["mlp_bias"], "");
pub const TIED: Key = key(&["tie_word_embeddings"], "");
pub const ROPE_THETA: Key = key(&["rope_theta"], "rope.freq_base");
pub const LOCAL_ROPE_THETA: Key = key(&["rope_local_base_freq"], "rope.freq_base_swa");
pub const ROTARY: Key = key(&[], "rope.dimension_count");
pub const PARTIAL_ROTARY: Key = key(&["partial_rotary_factor"], "");
pub const WINDOW: Key = key(&["sliding_window"], "attention.sliding_window");
pub const USE_WINDOW: Key = key(&["use_sliding_window"], "");
pub const FIRST_WINDOW_LAYER: Key = key(&["max_window_layers"], "");
pub const WINDOW_PERIOD: Key = key(
    &["sliding_window_pattern", "_sliding_window_pattern"],
    "attention.sliding_window_pattern",
);
pub const LAYER_TYPES: Key = key(&["layer_types"], "");
pub const ROPE_LAYERS: Key = key(&["no_rope_layers"], "");
pub const ROPE_LAYER_PERIOD: Key = key(&["no_rope_layer_interval"], "");
pub const QUERY_SCALAR: Key = key(&["query_pre_attn_scalar"], "");
pub const SCORE_CAP: Key = key(&["attn_logit_softcapping"], "attn_logit_softcapping");
pub const LOGIT_CAP: Key = key(&["final_logit_softcapping"], "final_logit_softcapping");

/// Reads settings of one checkpoint, whichever kind it is.
pub struct Settings<'a> {
    checkpoint: &'a Checkpoint,
    /// `general.architecture` of a GGUF file, `model_type` of a config.
    pub architecture: &'a str,
}

impl<'a> Settings<'a> {
    pub fn new(checkpoint: &'a Checkpoint) -> Result<Self, SpecError> {
        let architecture = match checkpoint.config() {
            Config::Gguf(metadata) => metadata.str("general.architecture")?,
            Config::Hf(config) => match text_config(config).get("model_type").or(config.get("model_type")) {
                Some(Value::String(name)) => name,
                Some(other) => return Err(wrong_type("model_type", "a string", other)),
                None => {
                    return Err(SpecError::MissingKey {
                        key: "model_type".into(),
                    });
                }
            },
        };
        Ok(Settings {
            checkpoint,
            architecture,
        })
    }

    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    pub fn is_gguf(&self) -> bool {
        matches!(self.checkpoint.config(), Config::Gguf(_))
    }

    /// The key as this kind of file spells it, for messages.
    pub fn spelling(&self, key: Key) -> String {
        if self.is_gguf() {
            self.gguf_name(key)
        } else {
            key.hf.join(" / ")
        }
    }

    /// A JSON value of a Hugging Face config, by its own name; JSON null counts as absent.
    pub fn hf(&self, name: &str) -> Option<&'a Value> {
        let Config::Hf(config) = self.checkpoint.config() else {
            return None;
        };
        let text = text_config(config);
        text.get(name)
            .or_else(|| config.get(name))
            .filter(|value| !value.is_null())
    }

    fn hf_alias(&self, key: Key) -> Option<(&'static str, &'a Value)> {
        key.hf.iter().find_map(|name| self.hf(name).map(|value| (*name, value)))
    }

    fn gguf_name(&self, key: Key) -> String {
        format!("{}.{}", self.architecture, key.gguf)
    }

    pub fn opt_usize(&self, key: Key) -> Result<Option<usize>, SpecError> {
        match self.checkpoint.config() {
            Config::Hf(_) => self
                .hf_alias(key)
                .map(|(name, value)| json_usize(name, value))
                .transpose(),
            Config::Gguf(_) if key.gguf.is_empty() => Ok(None),
            Config::Gguf(metadata) => {
                let value = metadata.optional::<u64>(&self.gguf_name(key))?;
                value.map(|n| in_range(&self.gguf_name(key), n)).transpose()
            }
        }
    }

    pub fn usize(&self, key: Key) -> Result<usize, SpecError> {
        self.opt_usize(key)?.ok_or_else(|| SpecError::MissingKey {
            key: self.spelling(key),
        })
    }

    pub fn opt_f64(&self, key: Key) -> Result<Option<f64>, SpecError> {
        match self.checkpoint.config() {
            Config::Hf(_) => self
                .hf_alias(key)
                .map(|(name, value)| json_f64(name, value))
                .transpose(),
            Config::Gguf(_) if key.gguf.is_empty() => Ok(None),
            Config::Gguf(metadata) => Ok(metadata.opt_f32(&self.gguf_name(key))?.map(f64::from)),
        }
    }

    pub fn f64(&self, key: Key) -> Result<f64, SpecError> {
        self.opt_f64(key)?.ok_or_else(|| SpecError::MissingKey {
            key: self.spelling(key),
        })
    }

    /// A string below the architecture's prefix of a GGUF file.
    pub fn gguf_str(&self, suffix: &str) -> Result<Option<&'a str>, SpecError> {
        match self.checkpoint.config() {
            Config::Gguf(metadata) => Ok(metadata.opt_str(&format!("{}.{suffix}", self.architecture))?),
            Config::Hf(_) => Ok(None),
        }
    }

    pub fn opt_bool(&self, key: Key) -> Result<Option<bool>, SpecError> {
        match self.hf_alias(key) {
            None => Ok(None),
            Some((_, Value::Bool(flag))) => Ok(Some(*flag)),
            Some((name, other)) => Err(wrong_type(name, "true or false", other)),
        }
    }

    pub fn opt_str(&self, key: Key) -> Result<Option<&'a str>, SpecError> {
        match self.hf_alias(key) {
            None => Ok(None),
            Some((_, Value::String(text))) => Ok(Some(text)),
            Some((name, other)) => Err(wrong_type(name, "a string", other)),
        }
    }

    /// An array with one entry a layer.
    pub fn opt_per_layer(&self, key: Key, layers: usize) -> Result<Option<&'a [Value]>, SpecError> {
        match self.hf_alias(key) {
            None => Ok(None),
            Some((_, Value::Array(list))) if list.len() == layers => Ok(Some(list)),
            Some((name, Value::Array(list))) => Err(SpecError::BadValue {
                key: name.into(),
                value: format!("{} entries", list.len()),
                expected: format!("one entry for each of {layers} layers"),
            }),
            Some((name, other)) => Err(wrong_type(name, "an array", other)),
        }
    }
}

/// The part of a config that describes the language model.
fn text_config(config: &serde_json::Map<String, Value>) -> &serde_json::Map<String, Value> {
    config.get("text_config").and_then(Value::as_object).unwrap_or(config)
}

pub fn json_usize(name: &str, value: &Value) -> Result<usize, SpecError> {
    let number = value
        .as_u64()
        .ok_or_else(|| wrong_type(name, "a whole number", value))?;
    in_range(name, number)
}

pub fn json_f64(name: &str, value: &Value) -> Result<f64, SpecError> {
    value.as_f64().ok_or_else(|| wrong_type(name, "a number", value))
}

/// Sizes beyond this are nonsense in any model and would overflow products of two of them.
const LARGEST: u64 = 1 << 31;

fn in_range(name: &str, value: u64) -> Result<usize, SpecError> {
    if value > LARGEST {
        let expected = format!("at most {LARGEST}");
        return Err(SpecError::BadValue {
            key: name.into(),
            value: value.to_string(),
            expected,
        });
    }
    Ok(value as usize)
}

pub fn wrong_type(name: &str, expected: &str, value: &Value) -> SpecError {
    let mut shown = value.to_string();
    if shown.len() > 60 {
        let end = (0..=60).rev().find(|&i| shown.is_char_boundary(i)).unwrap_or(0);
        shown.truncate(end);
        shown.push('…');
    }
    SpecError::BadValue {
        key: name.into(),
        value: shown,
        expected: expected.into(),
    }
}
