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

/// Changes `key`, spelled as in `sensitivity.config`.
pub fn perturb(config: &mut Config, key: &str) -> Result<(), PerturbError> {
    let Config::Hf(config) = config else {
        return Err(PerturbError::Gguf);
    };
    match key {
        // Two labels of the cases stand for more than a key.
        "query scaling by head_dim" => {
            let head_dim = config
                .get("head_dim")
                .cloned()
                .ok_or_else(|| PerturbError::NoSuchKey("head_dim".into()))?;
            config.insert("query_pre_attn_scalar".into(), head_dim);
        }
        "use_sliding_window" => {
            config.insert(key.into(), json!(true));
            config.insert("max_window_layers".into(), json!(1));
        }
        _ => match key.split_once('.') {
            Some((object, inner)) => {
                let object = config.get_mut(object).and_then(Value::as_object_mut);
                let object = object.ok_or_else(|| PerturbError::NoSuchKey(key.into()))?;
                change(object, inner, inner_rule)?;
            }
            None => change(config, key, rule)?,
        },
    }
    Ok(())
}

fn change(
    object: &mut Map<String, Value>,
    key: &str,
    rule: fn(&str, &Value) -> Option<Value>,
) -> Result<(), PerturbError> {
    let value = object.get_mut(key).ok_or_else(|| PerturbError::NoSuchKey(key.into()))?;
    *value = rule(key, value).ok_or_else(|| PerturbError::NoRule(key.into()))?;
    Ok(())
}

fn rule(key: &str, value: &Value) -> Option<Value> {
    Some(match key {
        "sliding_window" => json!(4096),
        "rope_scaling" | "attn_logit_softcapping" => Value::Null,
        "rope_theta" | "rope_local_base_freq" => json!(value.as_f64()? * 7.0),
        "query_pre_attn_scalar" => json!(value.as_f64()? * 2.0),
        "final_logit_softcapping" => json!(value.as_f64()? * 0.5),
        "rms_norm_eps" => json!(value.as_f64()? * 1000.0),
        "hidden_act" => json!(if value == "silu" { "gelu" } else { "silu" }),
        "hidden_activation" => json!("silu"),
        "layer_types" => json!(vec!["full_attention"; value.as_array()?.len()]),
        "sliding_window_pattern" => json!(value.as_u64()? + 1),
        "no_rope_layers" => value
            .as_array()?
            .iter()
            .map(|flag| json!(1 - flag.as_i64().unwrap_or(0)))
            .collect(),
        _ => return None,
    })
}

/// Keys of `rope_scaling`.
fn inner_rule(key: &str, value: &Value) -> Option<Value> {
    Some(match key {
        "beta_fast" => json!(value.as_f64()? / 8.0),
        "factor" | "low_freq_factor" | "attention_factor" => json!(value.as_f64()? * 2.0),
        "original_max_position_embeddings" => json!(value.as_u64()? * 2),
        _ => return None,
    })
}
