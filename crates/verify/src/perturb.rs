//! Changes one setting of a case, so that a judge who passes it is found out. The changes are those whose effect the cases record
//! (`sensitivity.config`): every one moves the logits far beyond the bound.

use goldcrest_format::Config;
use serde_json::{Map, Value, json};

/// Why a setting cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum PerturbError {
    /// The configuration has no such key.
    #[error("the configuration has no '{0}' to perturb")]
    NoSuchKey(String),
    /// No change is known that keeps the shapes.
    #[error("'{0}' cannot be perturbed")]
    NoRule(String),
    /// A GGUF file is judged as it is.
    #[error("only the configuration of a checkpoint folder can be perturbed, not a GGUF file")]
    Gguf,
}

/// Changes `key`, spelled as in `sensitivity.config`: the objects that hold it, and its name, joined by dots.
pub fn perturb(config: &mut Config, key: &str) -> Result<(), PerturbError> {
    let Config::Hf(config) = config else {
        return Err(PerturbError::Gguf);
    };
    // Two labels of the cases stand for more than a key.
    match key {
        "query scaling by head_dim" => {
            let head_dim = config
                .get("head_dim")
                .cloned()
                .ok_or_else(|| PerturbError::NoSuchKey("head_dim".into()))?;
            config.insert("query_pre_attn_scalar".into(), head_dim);
            return Ok(());
        }
        "use_sliding_window" => {
            config.insert(key.into(), json!(true));
            config.insert("max_window_layers".into(), json!(1));
            return Ok(());
        }
        _ => {}
    }
    let missing = || PerturbError::NoSuchKey(key.into());
    let mut path: Vec<&str> = key.split('.').collect();
    let name = path.pop().ok_or_else(missing)?;
    let mut object: &mut Map<String, Value> = config;
    for part in &path {
        object = object
            .get_mut(*part)
            .and_then(Value::as_object_mut)
            .ok_or_else(missing)?;
    }
    let in_rope = path.iter().any(|part| part.starts_with("rope_"));
    let value = object.get_mut(name).ok_or_else(missing)?;
    let rule = if in_rope { rope_rule } else { rule };
    *value = rule(name, value).ok_or_else(|| PerturbError::NoRule(key.into()))?;
    Ok(())
}

fn rule(key: &str, value: &Value) -> Option<Value> {
    let times = |factor: f64| Some(json!(value.as_f64()? * factor));
    let not = || Some(json!(!value.as_bool()?));
    match key {
        "sliding_window" | "attention_chunk_size" => Some(json!(4096)),
        "rope_scaling" | "attn_logit_softcapping" => Some(Value::Null),
        "rope_theta" | "rope_local_base_freq" => times(7.0),
        "partial_rotary_factor" => Some(json!(if value.as_f64()? == 1.0 { 0.5 } else { 1.0 })),
        "query_pre_attn_scalar" | "attn_scale" => times(2.0),
        "final_logit_softcapping" | "swiglu_limit" => times(0.5),
        "floor_scale" => Some(json!(value.as_u64()? * 4)),
        "router_jitter_noise" => times(40.0),
        "rms_norm_eps" | "layer_norm_eps" | "layer_norm_epsilon" | "norm_eps" => times(1000.0),
        "hidden_act" => Some(json!(if value == "silu" { "gelu" } else { "silu" })),
        "hidden_activation" | "mlp_hidden_act" => Some(json!("silu")),
        "layer_types" => Some(json!(vec!["full_attention"; value.as_array()?.len()])),
        "sliding_window_pattern" => Some(value.as_u64().map_or(Value::Null, |period| json!(period + 1))),
        "no_rope_layers" => {
            let flags = value
                .as_array()?
                .iter()
                .map(|flag| json!(1 - flag.as_i64().unwrap_or(0)));
            Some(flags.collect())
        }
        "topk_method" => Some(json!("greedy")),
        "time_step_limit" => Some(json!([0.0, 0.3])),
        "ssm_multipliers" => {
            let mut list = value.as_array()?.clone();
            list.rotate_right(1);
            Some(list.into())
        }
        "mlp_multipliers" => Some(value.as_array()?.iter().rev().cloned().collect()),
        "altup_active_idx" => Some(json!(1)),
        "activation_sparsity_pattern" => Some(json!(vec![0.0; value.as_array()?.len()])),
        "topk_group" | "num_experts_per_tok" | "num_experts_per_token" | "moe_k" | "moe_topk" | "top_k_experts" => {
            one_more(value)
        }
        "norm_topk_prob"
        | "moe_renormalize"
        | "rope_interleave"
        | "attn_temperature_tuning"
        | "use_qk_norm"
        | "mamba_norm_before_gate"
        | "use_parallel_residual"
        | "altup_correct_scale" => not(),
        _ if key.ends_with("_multiplier") || key.ends_with("_scaling") || key.ends_with("_scale") => times(1.5),
        _ if key.ends_with("_alpha_factor") || key.ends_with("_beta_factor") || key == "routed_scaling_factor" => {
            times(1.5)
        }
        _ => None,
    }
}

/// A number, or every number of a list, and one.
fn one_more(value: &Value) -> Option<Value> {
    match value {
        Value::Array(list) => list.iter().map(one_more).collect(),
        number => Some(json!(number.as_u64()? + 1)),
    }
}

/// Keys of `rope_scaling` and `rope_parameters`.
fn rope_rule(key: &str, value: &Value) -> Option<Value> {
    match key {
        "partial_rotary_factor" => Some(json!(1.0)),
        "beta_fast" => Some(json!(value.as_f64()? / 8.0)),
        "mrope_section" => {
            let sections: Option<Vec<i64>> = value.as_array()?.iter().map(Value::as_i64).collect();
            match sections?[..] {
                [time, height, width] => Some(json!([time + 4, height - 2, width - 2])),
                _ => None,
            }
        }
        _ => match value.as_u64() {
            Some(whole) => Some(json!(whole * 2)),
            None => Some(json!(value.as_f64()? * 2.0)),
        },
    }
}
