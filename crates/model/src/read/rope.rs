//! The rotation of a layer from the three ways in which files write it: `rope_theta` with `rope_scaling`, `rope_parameters` (one, or one
//! for each kind of layer), and GGUF keys.

use serde_json::{Map, Value};

use super::SpecError;
use super::keys::{self, Settings, json_f64, wrong_type};
use super::tensors::Tensors;
use crate::families::Family;
use crate::spec::{Rope, RopeScaling};

/// Base where the configuration names none (Llama's).
const DEFAULT_THETA: f64 = 10_000.0;

/// Leading dimensions of a head that rotate.
pub fn rotary_dims(settings: &Settings, head_dim: usize) -> Result<usize, SpecError> {
    let rotary = if settings.is_gguf() {
        settings.opt_usize(keys::ROTARY)?.unwrap_or(head_dim)
    } else {
        let fraction = match settings
            .hf("rope_parameters")
            .and_then(|p| p.get("partial_rotary_factor"))
        {
            Some(value) => json_f64("rope_parameters.partial_rotary_factor", value)?,
            None => settings.opt_f64(keys::PARTIAL_ROTARY)?.unwrap_or(1.0),
        };
        (head_dim as f64 * fraction) as usize
    };
    if rotary == 0 || rotary > head_dim || !rotary.is_multiple_of(2) {
        let expected = format!("an even number of at most head_dim = {head_dim} dimensions");
        let key = if settings.is_gguf() {
            settings.spelling(keys::ROTARY)
        } else {
            "partial_rotary_factor".into()
        };
        return Err(SpecError::BadValue {
            key,
            value: rotary.to_string(),
            expected,
        });
    }
    Ok(rotary)
}

/// The rotation of a layer; `windowed` chooses the local base where the family has one.
pub fn layer_rope(
    settings: &Settings,
    family: &Family,
    tensors: &mut Tensors,
    rotary: usize,
    windowed: bool,
) -> Result<Rope, SpecError> {
    let local = windowed && family.local_rope;
    if settings.is_gguf() {
        return gguf_rope(settings, tensors, rotary, local);
    }
    let parameters = match settings.hf("rope_parameters") {
        None => None,
        Some(value) => Some(parameters_of_kind(value, windowed)?),
    };
    let theta_inside = match parameters.and_then(|p| p.get("rope_theta")) {
        Some(value) => Some(json_f64("rope_parameters.rope_theta", value)?),
        None => None,
    };
    if let (Some(parameters), Some(theta)) = (parameters, theta_inside) {
        return Ok(Rope {
            theta,
            rotary,
            scaling: hf_scaling(settings, parameters)?,
        });
    }
    if local {
        let theta = settings.opt_f64(keys::LOCAL_ROPE_THETA)?.unwrap_or(DEFAULT_THETA);
        return Ok(Rope {
            theta,
            rotary,
            scaling: RopeScaling::None,
        });
    }
    let theta = settings.opt_f64(keys::ROPE_THETA)?.unwrap_or(DEFAULT_THETA);
    let scaling = match settings.hf("rope_scaling") {
        None => RopeScaling::None,
        Some(Value::Object(scaling)) => hf_scaling(settings, scaling)?,
        Some(other) => return Err(wrong_type("rope_scaling", "an object", other)),
    };
    Ok(Rope { theta, rotary, scaling })
}

/// `rope_parameters` is one set of parameters, or one for each kind of layer.
fn parameters_of_kind(value: &Value, windowed: bool) -> Result<&Map<String, Value>, SpecError> {
    let object = value
        .as_object()
        .ok_or_else(|| wrong_type("rope_parameters", "an object", value))?;
    let kind = if windowed {
        "sliding_attention"
    } else {
        "full_attention"
    };
    match object.get(kind) {
        None => Ok(object),
        Some(Value::Object(inner)) => Ok(inner),
        Some(other) => Err(wrong_type(&format!("rope_parameters.{kind}"), "an object", other)),
    }
}

fn hf_scaling(settings: &Settings, scaling: &Map<String, Value>) -> Result<RopeScaling, SpecError> {
    let number = |name: &str| match scaling.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => json_f64(&format!("rope_scaling.{name}"), value).map(Some),
    };
    let needed = |name: &str| {
        number(name)?.ok_or_else(|| SpecError::MissingKey {
            key: format!("rope_scaling.{name}"),
        })
    };
    let kind = match scaling.get("rope_type").or_else(|| scaling.get("type")) {
        Some(Value::String(kind)) => kind.as_str(),
        Some(other) => return Err(wrong_type("rope_scaling.rope_type", "a string", other)),
        None => {
            return Err(SpecError::MissingKey {
                key: "rope_scaling.rope_type".into(),
            });
        }
    };
    Ok(match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear {
            factor: needed("factor")?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: needed("factor")?,
            low_freq_factor: needed("low_freq_factor")?,
            high_freq_factor: needed("high_freq_factor")?,
            original_context: needed("original_max_position_embeddings")?,
        },
        "yarn" => {
            let factor = needed("factor")?;
            let ratio = match (number("mscale")?, number("mscale_all_dim")?) {
                (Some(m), Some(all)) => Some(yarn_mscale(factor, m) / yarn_mscale(factor, all)),
                _ => None,
            };
            let original = match number("original_max_position_embeddings")? {
                Some(length) => length,
                None => settings.usize(keys::CONTEXT)? as f64,
            };
            RopeScaling::Yarn {
                factor,
                original_context: original,
                beta_fast: number("beta_fast")?.unwrap_or(32.0),
                beta_slow: number("beta_slow")?.unwrap_or(1.0),
                truncate: scaling.get("truncate").and_then(Value::as_bool).unwrap_or(true),
                attention_factor: number("attention_factor")?
                    .or(ratio)
                    .unwrap_or(yarn_mscale(factor, 1.0)),
            }
        }
        other => {
            return Err(SpecError::Unsupported {
                key: "rope_scaling.rope_type".into(),
                value: other.into(),
            });
        }
    })
}

/// YaRN's growth of attention logits with the stretch, as a factor of cos and sin (paper, section 3.4).
fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * libm::log(factor) + 1.0
    }
}

fn gguf_rope(settings: &Settings, tensors: &mut Tensors, rotary: usize, local: bool) -> Result<Rope, SpecError> {
    if local {
        let theta = settings.opt_f64(keys::LOCAL_ROPE_THETA)?.unwrap_or(DEFAULT_THETA);
        return Ok(Rope {
            theta,
            rotary,
            scaling: RopeScaling::None,
        });
    }
    let theta = settings.opt_f64(keys::ROPE_THETA)?.unwrap_or(DEFAULT_THETA);
    if let Some(divisors) = tensors.opt_gguf_vector("rope_freqs.weight", rotary / 2)? {
        return Ok(Rope {
            theta,
            rotary,
            scaling: RopeScaling::Divisors(divisors),
        });
    }
    let number = |suffix: &'static str| settings.opt_f64(keys::Key { hf: &[], gguf: suffix });
    let needed = |suffix: &'static str| settings.f64(keys::Key { hf: &[], gguf: suffix });
    let original_context = keys::Key {
        hf: &[],
        gguf: "rope.scaling.original_context_length",
    };
    let scaling = match settings.gguf_str("rope.scaling.type")? {
        // Files of 2023 write a linear factor alone.
        None => match number("rope.scale_linear")? {
            Some(factor) if factor != 1.0 => RopeScaling::Linear { factor },
            _ => RopeScaling::None,
        },
        Some("none") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear {
            factor: needed("rope.scaling.factor")?,
        },
        Some("yarn") => {
            let factor = needed("rope.scaling.factor")?;
            RopeScaling::Yarn {
                factor,
                original_context: settings.usize(original_context)? as f64,
                beta_fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                truncate: true,
                attention_factor: number("rope.scaling.attn_factor")?.unwrap_or(1.0) * yarn_mscale(factor, 1.0),
            }
        }
        Some(other) => {
            let key = format!("{}.rope.scaling.type", settings.architecture);
            return Err(SpecError::Unsupported {
                key,
                value: other.into(),
            });
        }
    };
    Ok(Rope { theta, rotary, scaling })
}
