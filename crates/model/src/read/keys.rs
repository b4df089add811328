//! One name for a setting that two kinds of file spell differently.

use goldcrest_format::{Checkpoint, Config, gguf};
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
pub const HIDDEN: Key = key(&["hidden_size", "n_embd", "d_model"], "embedding_length");
pub const CONTEXT: Key = key(
    &[
        "max_position_embeddings",
        "n_positions",
        "model_max_length",
        "seq_length",
    ],
    "context_length",
);
/// Where a config has both, `num_layers` counts layers and `num_hidden_layers` their attentions.
pub const LAYERS: Key = key(
    &["num_layers", "num_hidden_layers", "n_layer", "n_layers"],
    "block_count",
);
/// Layers of a GGUF file that only predict further tokens.
pub const NEXTN_LAYERS: Key = key(&[], "nextn_predict_layers");
pub const HEADS: Key = key(&["num_attention_heads", "n_head"], "attention.head_count");
pub const KV_HEADS: Key = key(&["num_key_value_heads", "num_kv_heads"], "attention.head_count_kv");
pub const HEAD_DIM: Key = key(&["head_dim"], "attention.key_length");
pub const VALUE_DIM: Key = key(&["v_head_dim"], "attention.value_length");
/// Those of windowed layers, where they are not those of all.
pub const FULL_HEAD_DIM: Key = key(&["global_head_dim"], "");
pub const FULL_KV_HEADS: Key = key(&["num_global_key_value_heads"], "");
pub const SHARED_KV_LAYERS: Key = key(&["num_kv_shared_layers"], "attention.shared_kv_layers");
pub const LAYER_EMBEDDING: Key = key(&["hidden_size_per_layer_input"], "embedding_length_per_layer_input");
pub const WINDOW_HEADS: Key = key(&["swa_num_attention_heads"], "");
pub const WINDOW_KV_HEADS: Key = key(&["swa_num_key_value_heads"], "");
pub const WINDOW_HEAD_DIM: Key = key(&["swa_head_dim"], "attention.key_length_swa");
pub const WINDOW_VALUE_DIM: Key = key(&["swa_v_head_dim"], "attention.value_length_swa");
pub const VALUE_SCALE: Key = key(&["attention_value_scale"], "attention.value_scale");
pub const RMS_EPS: Key = key(
    &["rms_norm_eps", "norm_eps", "layernorm_epsilon", "layer_norm_epsilon"],
    "attention.layer_norm_rms_epsilon",
);
pub const LAYER_EPS: Key = key(
    &[
        "layer_norm_eps",
        "layer_norm_epsilon",
        "norm_eps",
        "norm_epsilon",
        "rms_norm_eps",
    ],
    "attention.layer_norm_epsilon",
);
pub const ACTIVATION: Key = key(
    &[
        "hidden_act",
        "hidden_activation",
        "activation_function",
        "mlp_hidden_act",
    ],
    "",
);
pub const ATTENTION_BIAS: Key = key(&["attention_bias"], "");
/// One switch for all projections.
pub const USE_BIAS: Key = key(&["use_bias"], "");
pub const QKV_BIAS: Key = key(&["use_qkv_bias"], "");
pub const OUTPUT_BIAS: Key = key(&["attention_out_bias"], "");
pub const MLP_BIAS: Key = key(&["mlp_bias"], "");
pub const TIED: Key = key(&["tie_word_embeddings", "tie_embedding"], "");
pub const ROPE_THETA: Key = key(&["rope_theta", "rotary_emb_base"], "rope.freq_base");
pub const LOCAL_ROPE_THETA: Key = key(&["rope_local_base_freq", "swa_rope_theta"], "rope.freq_base_swa");
pub const ROTARY: Key = key(&["rotary_dim"], "rope.dimension_count");
pub const WINDOW_ROTARY: Key = key(&[], "rope.dimension_count_swa");
pub const PARTIAL_ROTARY: Key = key(&["partial_rotary_factor", "rotary_pct", "rope_pct"], "");
pub const ORIGINAL_CONTEXT: Key = key(
    &["original_max_position_embeddings"],
    "rope.scaling.original_context_length",
);
pub const TEMPERATURE_SCALE: Key = key(&[], "attention.temperature_scale");
pub const WINDOW: Key = key(&["sliding_window", "sliding_window_size"], "attention.sliding_window");
pub const CHUNK: Key = key(&["attention_chunk_size"], "");
pub const USE_WINDOW: Key = key(&["use_sliding_window"], "");
pub const FIRST_WINDOW_LAYER: Key = key(&["max_window_layers"], "");
pub const WINDOW_PERIOD: Key = key(
    &[
        "sliding_window_pattern",
        "_sliding_window_pattern",
        "global_attn_every_n_layers",
    ],
    "attention.sliding_window_pattern",
);
pub const LAYER_TYPES: Key = key(&["layer_types"], "");
/// 1 for windowed layers, 0 for others.
pub const WINDOWED_LAYERS: Key = key(&["hybrid_layer_pattern"], "");
/// If not 1, dense layers before the experts do not rotate without a window.
pub const DENSE_WINDOW_PERIOD: Key = key(&["prefix_dense_sliding_window_pattern"], "");
/// Factors of queries of layers without rotation, which grow with the position.
pub const UNROTATED_TUNING: Key = key(&["attn_temperature_tuning"], "");
pub const UNROTATED_FLOOR: Key = key(&["floor_scale"], "");
pub const UNROTATED_SCALE: Key = key(&["attn_scale"], "");
pub const ROPE_LAYERS: Key = key(&["no_rope_layers"], "");
pub const ROPE_LAYER_PERIOD: Key = key(&["no_rope_layer_interval"], "");
pub const QUERY_SCALAR: Key = key(&["query_pre_attn_scalar"], "");
pub const ATTENTION_SCALE: Key = key(&["attention_multiplier"], "attention.scale");
pub const SCORE_CAP: Key = key(&["attn_logit_softcapping"], "attn_logit_softcapping");
pub const LOGIT_CAP: Key = key(&["final_logit_softcapping"], "final_logit_softcapping");
pub const EMBEDDING_SCALE: Key = key(&["embedding_multiplier"], "embedding_scale");
pub const SCALE_EMBEDDINGS: Key = key(&["mup_enabled"], "");
pub const RESIDUAL_SCALE: Key = key(&["residual_multiplier"], "residual_scale");
/// Logits are divided by it.
pub const LOGIT_DIVISOR: Key = key(&["logits_scaling"], "logit_scale");
pub const LOGIT_SCALE: Key = key(&["logit_scale"], "logit_scale");
pub const ROPE_INTERLEAVE: Key = key(&["rope_interleave"], "");
pub const LATENT_DIM: Key = key(&["kv_lora_rank"], "attention.kv_lora_rank");
pub const NOPE_DIM: Key = key(&["qk_nope_head_dim"], "");
pub const ROPE_DIM: Key = key(&["qk_rope_head_dim"], "rope.dimension_count");
/// Of both parts of a query head, in latent attention.
pub const LATENT_KEY_DIM: Key = key(&[], "attention.key_length_mla");
pub const INDEX_HEADS: Key = key(&["index_n_heads"], "attention.indexer.head_count");
pub const INDEX_DIM: Key = key(&["index_head_dim"], "attention.indexer.key_length");
pub const INDEX_TOP_K: Key = key(&["index_topk"], "attention.indexer.top_k");
pub const INDEXER_TYPES: Key = key(&["indexer_types"], "");
pub const LATENT_VALUE_DIM: Key = key(&["v_head_dim"], "attention.value_length_mla");
pub const EMBEDDING_FACTOR: Key = key(&["scale_emb"], "");
pub const DEPTH_SCALE: Key = key(&["scale_depth"], "");
pub const BASE_HIDDEN: Key = key(&["dim_model_base"], "");
pub const QK_NORM: Key = key(&["use_qk_norm", "qk_layernorm"], "");
pub const PARALLEL_RESIDUAL: Key = key(&["use_parallel_residual"], "use_parallel_residual");

pub const PARALLEL_ATTENTION: Key = key(&["parallel_attn"], "");
pub const MULTI_QUERY: Key = key(&["multi_query"], "");
pub const NEW_DECODER: Key = key(&["new_decoder_architecture"], "");
pub const ALIBI: Key = key(&["alibi"], "");

pub const EXPERTS: Key = key(
    &[
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_num_experts",
    ],
    "expert_count",
);
pub const TOP_K: Key = key(
    &[
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_k",
        "moe_topk",
        "top_k_experts",
        "experts_per_token",
    ],
    "expert_used_count",
);
pub const NORMALISE_EXPERTS: Key = key(
    &["norm_topk_prob", "moe_renormalize", "route_norm"],
    "expert_weights_norm",
);
pub const IDENTITY_EXPERTS: Key = key(&["zero_expert_num"], "");
pub const EXPERT_SCALE: Key = key(
    &["routed_scaling_factor", "route_scale", "router_scaling_factor"],
    "expert_weights_scale",
);
/// Least sum that chosen weights are divided by.
pub const EXPERT_SUM_MIN: Key = key(&["moe_norm_min"], "");
pub const ROUTER_JITTER: Key = key(&["router_jitter_noise"], "");
/// GGUF numbers it. 1: softmax, 2: sigmoid, 3: softmax of the chosen.
pub const EXPERT_SCORING: Key = key(&["expert_selection_fn"], "expert_gating_func");
pub const EXPERT_GROUPS: Key = key(&["n_group", "num_expert_group"], "expert_group_count");
pub const KEPT_GROUPS: Key = key(&["topk_group"], "expert_group_used_count");
pub const GROUP_METHOD: Key = key(&["topk_method"], "");
pub const SHARED_EXPERTS: Key = key(
    &["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"],
    "expert_shared_count",
);
pub const LINEAR_KEY_HEADS: Key = key(&["linear_num_key_heads"], "ssm.group_count");
pub const KDA_HEADS: Key = key(&["linear_num_heads"], "");
pub const NEGATIVE_EIGENVALUES: Key = key(&["linear_allow_neg_eigval"], "");
pub const CONV_BIAS: Key = key(&["conv_bias"], "");
pub const ATTENTION_ALPHA: Key = key(&["full_attn_alpha_factor"], "");
pub const ATTENTION_BETA: Key = key(&["full_attn_beta_factor"], "");
pub const LINEAR_ALPHA: Key = key(&["linear_attn_alpha_factor"], "");
pub const LINEAR_BETA: Key = key(&["linear_attn_beta_factor"], "");
pub const FFN_ALPHA: Key = key(&["mlp_alpha_factor"], "");
pub const FFN_BETA: Key = key(&["mlp_beta_factor"], "");

/// Size of the state of a channel, or of a head and a channel.
pub const STATE_DIM: Key = key(&["mamba_d_state", "ssm_state_size", "state_size"], "ssm.state_size");
pub const STATE_HEADS: Key = key(&["mamba_n_heads", "mamba_num_heads", "num_heads"], "ssm.time_step_rank");
pub const STATE_GROUPS: Key = key(&["mamba_n_groups", "n_groups"], "ssm.group_count");
pub const CONV_KERNEL: Key = key(&["mamba_d_conv", "conv_kernel"], "ssm.conv_kernel");
/// Least and most.
pub const DT_LIMITS: Key = key(&["mamba_dt_limit", "time_step_limit"], "");
pub const LEAST_DT: Key = key(&["mamba_dt_min", "time_step_min"], "");
pub const STATE_ACTIVATION: Key = key(&["mamba_hidden_act"], "");
pub const STATE_NORM: Key = key(&["mamba_rms_norm"], "");
pub const STATE_GATE_LAST: Key = key(&["mamba_norm_before_gate"], "");
pub const NORMED_DT_B_C: Key = key(&[], "ssm.dt_b_c_rms");

// Falcon-H1's factors; converters to GGUF multiply the weights by them.
pub const ATTENTION_IN_SCALE: Key = key(&["attention_in_multiplier"], "");
pub const ATTENTION_OUT_SCALE: Key = key(&["attention_out_multiplier"], "");
pub const KEY_SCALE: Key = key(&["key_multiplier"], "");
pub const STATE_IN_SCALE: Key = key(&["ssm_in_multiplier"], "");
pub const STATE_OUT_SCALE: Key = key(&["ssm_out_multiplier"], "");
/// Of gate, x, B, C and dt.
pub const STATE_SCALES: Key = key(&["ssm_multipliers"], "");
/// Of gate and down.
pub const FFN_SCALES: Key = key(&["mlp_multipliers"], "");
pub const HEAD_SCALE: Key = key(&["lm_head_multiplier"], "");

/// Whether positions are rotations.
pub const POSITIONS: Key = key(&["position_embedding_type"], "rope.scaling.finetuned");

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

    /// Layers of the decoder. Files may hold more, which predict further tokens.
    pub fn layers(&self) -> Result<usize, SpecError> {
        let further = self.opt_usize(NEXTN_LAYERS)?.unwrap_or(0);
        // Some configs only list the kinds of their layers.
        let listed = || self.hf("layers_block_type").and_then(Value::as_array).map(Vec::len);
        let layers = match self.opt_usize(LAYERS)?.or_else(listed) {
            Some(layers) => layers,
            None => self.usize(LAYERS)?,
        };
        Ok(layers.saturating_sub(further))
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

    /// The error of a needed key that the file lacks.
    pub fn missing(&self, key: Key) -> SpecError {
        SpecError::MissingKey {
            key: self.spelling(key),
        }
    }

    /// The error of a value that cannot be.
    pub fn bad_value(&self, key: Key, value: impl ToString, expected: impl Into<String>) -> SpecError {
        SpecError::BadValue {
            key: self.spelling(key),
            value: value.to_string(),
            expected: expected.into(),
        }
    }

    /// The error of a value that means something which this build does not know.
    pub fn unsupported(&self, key: Key, value: impl ToString) -> SpecError {
        SpecError::Unsupported {
            key: self.spelling(key),
            value: value.to_string(),
        }
    }

    /// The number `number` of a needed key, which has to be above zero.
    pub fn positive(&self, key: Key, number: Option<usize>) -> Result<usize, SpecError> {
        match number {
            None => Err(self.missing(key)),
            Some(0) => Err(self.bad_value(key, 0, "a number above zero")),
            Some(number) => Ok(number),
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

    /// Whether a Hugging Face config has the key, be its value null.
    pub fn hf_has(&self, key: Key) -> bool {
        match self.checkpoint.config() {
            Config::Hf(config) => key.hf.iter().any(|name| text_config(config).contains_key(*name)),
            Config::Gguf(_) => false,
        }
    }

    pub fn hf_alias(&self, key: Key) -> Option<(&'static str, &'a Value)> {
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

    /// As [`Settings::opt_usize`], where a list with an entry for each layer may stand for one number, and `per_layer_config` for layers
    /// that differ.
    pub fn opt_usize_at(&self, key: Key, layer: usize) -> Result<Option<usize>, SpecError> {
        let own = self
            .hf("per_layer_config")
            .and_then(|layers| layers.get(layer.to_string()));
        let own = own.and_then(|own| key.hf.iter().find_map(|name| Some((*name, own.get(name)?))));
        if let Some((name, value)) = own {
            return json_usize(name, value).map(Some);
        }
        let list: Option<Vec<u64>> = match self.checkpoint.config() {
            Config::Hf(_) => match self.hf_alias(key) {
                Some((_, Value::Array(list))) => list.iter().map(Value::as_u64).collect(),
                _ => None,
            },
            Config::Gguf(metadata) => match metadata.get(&self.gguf_name(key)) {
                Some(gguf::Value::Array(array)) => array.integers(),
                _ => None,
            },
        };
        let Some(list) = list else {
            return self.opt_usize(key);
        };
        match list.get(layer) {
            Some(&value) => in_range(&self.spelling(key), value).map(Some),
            None => Err(self.bad_value(
                key,
                format!("{} entries", list.len()),
                format!("an entry for layer {layer}"),
            )),
        }
    }

    pub fn usize(&self, key: Key) -> Result<usize, SpecError> {
        self.opt_usize(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn opt_f64(&self, key: Key) -> Result<Option<f64>, SpecError> {
        match self.checkpoint.config() {
            Config::Hf(_) => self
                .hf_alias(key)
                .map(|(name, value)| json_f64(name, value))
                .transpose(),
            Config::Gguf(_) if key.gguf.is_empty() => Ok(None),
            Config::Gguf(metadata) => {
                let name = self.gguf_name(key);
                // Lengths are written as whole numbers.
                match metadata.get(&name).and_then(gguf::Value::integer) {
                    Some(whole) => Ok(Some(whole as f64)),
                    None => Ok(metadata.opt_f32(&name)?.map(f64::from)),
                }
            }
        }
    }

    pub fn f64(&self, key: Key) -> Result<f64, SpecError> {
        self.opt_f64(key)?.ok_or_else(|| self.missing(key))
    }

    /// An entry of a list of numbers of a Hugging Face config.
    pub fn opt_entry(&self, key: Key, index: usize) -> Result<Option<f64>, SpecError> {
        let Some((name, list)) = self.hf_alias(key) else {
            return Ok(None);
        };
        match list.get(index) {
            Some(value) => json_f64(name, value).map(Some),
            None => Err(wrong_type(name, &format!("a list of more than {index} numbers"), list)),
        }
    }

    /// The eps of the norms. Some GGUF files spell it as that of the other kind of norm.
    pub fn norm_eps(&self, key: Key) -> Result<f64, SpecError> {
        for spelling in [key, RMS_EPS, LAYER_EPS] {
            if let Some(eps) = self.opt_f64(spelling)? {
                return Ok(eps);
            }
        }
        self.f64(key)
    }

    /// A number of a GGUF file, one for all layers or one for each; `key` is whole.
    pub fn gguf_f32_at(&self, key: &str, layer: usize) -> Result<Option<f32>, SpecError> {
        let Config::Gguf(metadata) = self.checkpoint.config() else {
            return Ok(None);
        };
        let value = match metadata.get(key) {
            Some(gguf::Value::Array(gguf::Array::F32(list))) => list.get(layer).copied(),
            _ => metadata.opt_f32(key)?,
        };
        Ok(value)
    }

    /// A string below the architecture's prefix of a GGUF file.
    pub fn gguf_str(&self, suffix: &str) -> Result<Option<&'a str>, SpecError> {
        match self.checkpoint.config() {
            Config::Gguf(metadata) => Ok(metadata.opt_str(&format!("{}.{suffix}", self.architecture))?),
            Config::Hf(_) => Ok(None),
        }
    }

    pub fn opt_bool(&self, key: Key) -> Result<Option<bool>, SpecError> {
        if let Config::Gguf(metadata) = self.checkpoint.config() {
            return match key.gguf {
                "" => Ok(None),
                _ => Ok(metadata.optional::<bool>(&self.gguf_name(key))?),
            };
        }
        match self.hf_alias(key) {
            None => Ok(None),
            Some((_, Value::Bool(flag))) => Ok(Some(*flag)),
            // Some configs say it by a number.
            Some((_, Value::Number(number))) => Ok(Some(number.as_f64() != Some(0.0))),
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

    /// An array with one entry a layer; an empty one counts as absent.
    pub fn opt_per_layer(&self, key: Key, layers: usize) -> Result<Option<&'a [Value]>, SpecError> {
        match self.hf_alias(key) {
            None => Ok(None),
            Some((_, Value::Array(list))) if list.is_empty() => Ok(None),
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
