//! The rotation of a layer from the three ways in which files write it: `rope_theta` with `rope_scaling`, `rope_parameters` (one, or one
//! for each kind of layer), and GGUF keys.

use serde_json::{Map, Value};

use super::SpecError;
use super::keys::{self, Settings, json_f64, wrong_type};
use super::tensors::Tensors;
use crate::families::{Family, LocalRope, PositionScaling};
use crate::spec::{Divisors, LongRopeList, PositionScale, Rope, RopeScaling, Visible};

/// Base where the configuration names none (Llama's).
const DEFAULT_THETA: f64 = 10_000.0;

/// Leading dimensions of a head that rotate, in a layer that sees this much.
pub fn rotary_dims(settings: &Settings, head_dim: usize, visible: Visible) -> Result<usize, SpecError> {
    let rotary = if settings.is_gguf() {
        let windowed = match visible {
            Visible::All => None,
            _ => settings.opt_usize(keys::WINDOW_ROTARY)?,
        };
        windowed.or(settings.opt_usize(keys::ROTARY)?).unwrap_or(head_dim)
    } else {
        let parameters = match settings.hf("rope_parameters") {
            None => None,
            Some(value) => Some(parameters_of_kind(value, visible)?),
        };
        if parameters.is_some_and(|parameters| rope_type(parameters) == Some(PROPORTIONAL)) {
            return Ok(head_dim);
        }
        match rotary_fraction(settings, visible)? {
            Some(fraction) => (head_dim as f64 * fraction) as usize,
            None => settings.opt_usize(keys::ROTARY)?.unwrap_or(head_dim),
        }
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

/// The part of a head that rotates, if a Hugging Face config says it.
pub fn rotary_fraction(settings: &Settings, visible: Visible) -> Result<Option<f64>, SpecError> {
    let inside = match settings.hf("rope_parameters") {
        None => None,
        Some(value) => parameters_of_kind(value, visible)?.get("partial_rotary_factor"),
    };
    match inside {
        Some(value) => json_f64("rope_parameters.partial_rotary_factor", value).map(Some),
        None => settings.opt_f64(keys::PARTIAL_ROTARY),
    }
}

/// Whether a Hugging Face config gives null as the base of the rotation.
pub fn base_is_null(settings: &Settings) -> bool {
    match settings
        .hf("rope_parameters")
        .and_then(|parameters| parameters.get("rope_theta"))
    {
        Some(theta) => theta.is_null(),
        None => settings.hf_has(keys::ROPE_THETA) && settings.hf("rope_theta").is_none(),
    }
}

/// The factor of queries that grows with the position, of a layer that rotates or does not.
pub fn position_scale(
    settings: &Settings,
    facts: PositionScaling,
    rotates: bool,
) -> Result<Option<PositionScale>, SpecError> {
    match facts {
        PositionScaling::None => Ok(None),
        PositionScaling::RopeParameter(name) => {
            let gguf = settings.opt_f64(keys::TEMPERATURE_SCALE)?;
            let parameters = settings.hf("rope_parameters").or(settings.hf("rope_scaling"));
            let inside = |name: &str| match parameters.and_then(|p| p.get(name)) {
                None => Ok(None),
                Some(value) => json_f64(name, value).map(Some),
            };
            let Some(beta) = gguf.or(inside(name)?) else {
                return Ok(None);
            };
            let floor = match inside("original_max_position_embeddings")? {
                Some(floor) => floor,
                None => settings.f64(keys::ORIGINAL_CONTEXT)?,
            };
            Ok(Some(PositionScale {
                beta: beta as f32,
                floor: floor as f32,
                offset: 0.0,
            }))
        }
        PositionScaling::Unrotated { on, floor, scale } => {
            if rotates || !settings.opt_bool(on)?.unwrap_or(true) {
                return Ok(None);
            }
            Ok(Some(PositionScale {
                beta: settings.opt_f64(scale)?.unwrap_or(0.1) as f32,
                floor: settings.opt_f64(floor)?.unwrap_or(8192.0) as f32,
                offset: 1.0,
            }))
        }
    }
}

/// The rotation of a layer; one that sees a window has the local base where the family has one.
pub fn layer_rope(
    settings: &Settings,
    family: &Family,
    tensors: &mut Tensors,
    rotary: usize,
    visible: Visible,
) -> Result<Rope, SpecError> {
    let local = match visible {
        Visible::All => LocalRope::Same,
        _ => family.attention.rope.local,
    };
    if settings.is_gguf() {
        return gguf_rope(settings, family, tensors, (rotary, local));
    }
    if let Some(value) = settings.hf("rope_parameters") {
        let parameters = parameters_of_kind(value, visible)?;
        if let Some(theta) = parameters.get("rope_theta") {
            let theta = json_f64("rope_parameters.rope_theta", theta)?;
            return HfRope {
                settings,
                family,
                parameters,
                theta,
                rotary,
            }
            .read();
        }
    }
    let theta = match local {
        LocalRope::OwnBase => settings.opt_f64(keys::LOCAL_ROPE_THETA)?,
        LocalRope::Same | LocalRope::Unscaled => settings.opt_f64(keys::ROPE_THETA)?,
    };
    let theta = theta.unwrap_or(DEFAULT_THETA);
    if local != LocalRope::Same {
        return Ok(plain(theta, rotary));
    }
    match settings.hf("rope_scaling") {
        None => Ok(plain(theta, rotary)),
        Some(Value::Object(parameters)) => HfRope {
            settings,
            family,
            parameters,
            theta,
            rotary,
        }
        .read(),
        Some(other) => Err(wrong_type("rope_scaling", "an object", other)),
    }
}

fn plain(theta: f64, rotary: usize) -> Rope {
    Rope {
        theta,
        rotary,
        scaling: RopeScaling::None,
    }
}

/// The rotation that covers whole heads, of which only the first angles turn.
const PROPORTIONAL: &str = "proportional";

fn rope_type(parameters: &Map<String, Value>) -> Option<&str> {
    let kind = parameters.get("rope_type").or_else(|| parameters.get("type"));
    kind.and_then(Value::as_str)
}

/// `rope_parameters` is one set of parameters, or one for each kind of layer.
pub fn parameters_of_kind(value: &Value, visible: Visible) -> Result<&Map<String, Value>, SpecError> {
    let object = value
        .as_object()
        .ok_or_else(|| wrong_type("rope_parameters", "an object", value))?;
    let kind = match visible {
        Visible::All => "full_attention",
        Visible::Window(_) => "sliding_attention",
        Visible::Chunk(_) => "chunked_attention",
    };
    match object.get(kind) {
        None => Ok(object),
        Some(Value::Object(inner)) => Ok(inner),
        Some(other) => Err(wrong_type(&format!("rope_parameters.{kind}"), "an object", other)),
    }
}

/// One set of parameters of a Hugging Face config.
struct HfRope<'a> {
    settings: &'a Settings<'a>,
    family: &'a Family,
    parameters: &'a Map<String, Value>,
    theta: f64,
    rotary: usize,
}

impl HfRope<'_> {
    fn number(&self, name: &str) -> Result<Option<f64>, SpecError> {
        match self.parameters.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => json_f64(&format!("rope_scaling.{name}"), value).map(Some),
        }
    }

    fn needed(&self, name: &str) -> Result<f64, SpecError> {
        self.number(name)?.ok_or_else(|| SpecError::MissingKey {
            key: format!("rope_scaling.{name}"),
        })
    }

    fn read(&self) -> Result<Rope, SpecError> {
        let kind = match self.parameters.get("rope_type").or_else(|| self.parameters.get("type")) {
            Some(Value::String(kind)) => kind.as_str(),
            Some(other) => return Err(wrong_type("rope_scaling.rope_type", "a string", other)),
            None => {
                return Err(SpecError::MissingKey {
                    key: "rope_scaling.rope_type".into(),
                });
            }
        };
        let mut theta = self.theta;
        let scaling = match kind {
            // The axes of pictures turn alike in text.
            "default" | "mrope" => RopeScaling::None,
            "linear" => RopeScaling::Linear {
                factor: self.needed("factor")?,
            },
            "llama3" => RopeScaling::Llama3 {
                factor: self.needed("factor")?,
                low_freq_factor: self.needed("low_freq_factor")?,
                high_freq_factor: self.needed("high_freq_factor")?,
                original_context: self.needed("original_max_position_embeddings")?,
            },
            "yarn" => self.yarn()?,
            PROPORTIONAL => {
                let share = self.number("partial_rotary_factor")?.unwrap_or(1.0);
                RopeScaling::Proportional {
                    angles: (self.rotary as f64 * share / 2.0) as usize,
                }
            }
            "longrope" | "su" => self.longrope()?,
            "dynamic" => match self.number("alpha")? {
                // Hunyuan's: a stretch of the base that does not depend on the length.
                Some(alpha) => {
                    let dims = self.rotary as f64;
                    theta *= libm::pow(alpha, dims / (dims - 2.0));
                    RopeScaling::None
                }
                None => RopeScaling::Dynamic {
                    factor: self.needed("factor")?,
                    context: self.settings.usize(keys::CONTEXT)? as f64,
                },
            },
            other => {
                return Err(SpecError::Unsupported {
                    key: "rope_scaling.rope_type".into(),
                    value: other.into(),
                });
            }
        };
        Ok(Rope {
            theta,
            rotary: self.rotary,
            scaling,
        })
    }

    fn yarn(&self) -> Result<RopeScaling, SpecError> {
        let factor = self.needed("factor")?;
        let ratio = match (self.number("mscale")?, self.number("mscale_all_dim")?) {
            (Some(m), Some(all)) if m != 0.0 && all != 0.0 => Some(yarn_mscale(factor, m) / yarn_mscale(factor, all)),
            _ => None,
        };
        let original_context = match self.number("original_max_position_embeddings")? {
            Some(length) => length,
            None => self.settings.usize(keys::CONTEXT)? as f64,
        };
        Ok(RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast: self.number("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.number("beta_slow")?.unwrap_or(1.0),
            truncate: match self.parameters.get("truncate").and_then(Value::as_bool) {
                Some(truncate) => truncate,
                None => self.family.attention.rope.yarn_truncates,
            },
            attention_factor: self
                .number("attention_factor")?
                .or(ratio)
                .unwrap_or(yarn_mscale(factor, 1.0)),
        })
    }

    fn longrope(&self) -> Result<RopeScaling, SpecError> {
        // Files that give the factors of cos and sin themselves divide by the short list in either regime, and their inner length wins;
        // elsewhere the outer one does.
        let own_factors = (self.number("short_mscale")?, self.number("long_mscale")?);
        let outer = self.settings.opt_f64(keys::ORIGINAL_CONTEXT)?;
        let inner = self.number("original_max_position_embeddings")?;
        let original_context = match own_factors {
            (Some(_), Some(_)) => inner.or(outer),
            _ => outer.or(inner),
        };
        let original_context = match original_context {
            Some(length) => length,
            None => self.needed("original_max_position_embeddings")?,
        };
        let stretch = match self.number("factor")? {
            Some(factor) => factor,
            None => self.settings.usize(keys::CONTEXT)? as f64 / original_context,
        };
        let usual = match self.number("attention_factor")? {
            Some(factor) => factor,
            None => longrope_attention_factor(stretch, original_context),
        };
        let list = |name: &str| self.list(name);
        let (long, short_factor, long_factor) = match own_factors {
            (Some(short), Some(long)) => ("short_factor", short, long),
            _ => ("long_factor", usual, usual),
        };
        Ok(RopeScaling::LongRope {
            original_context,
            short: LongRopeList {
                divisors: Divisors::Listed(list("short_factor")?),
                attention_factor: short_factor,
            },
            long: LongRopeList {
                divisors: Divisors::Listed(list(long)?),
                attention_factor: long_factor,
            },
        })
    }

    /// One number a frequency.
    fn list(&self, name: &str) -> Result<Vec<f64>, SpecError> {
        let key = format!("rope_scaling.{name}");
        let expected = format!("{} numbers", self.rotary / 2);
        let Some(value) = self.parameters.get(name) else {
            return Err(SpecError::MissingKey { key });
        };
        let list: Option<Vec<f64>> = value
            .as_array()
            .and_then(|list| list.iter().map(Value::as_f64).collect());
        list.filter(|list| list.len() == self.rotary / 2)
            .ok_or_else(|| wrong_type(&key, &expected, value))
    }
}

/// LongRoPE's factor of cos and sin: √(1 + ln(stretch) / ln(original context)), 1 without a stretch.
fn longrope_attention_factor(stretch: f64, original_context: f64) -> f64 {
    if stretch <= 1.0 {
        1.0
    } else {
        (1.0 + libm::log(stretch) / libm::log(original_context)).sqrt()
    }
}

/// YaRN's growth of attention logits with the stretch, as a factor of cos and sin (paper, section 3.4).
fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * libm::log(factor) + 1.0
    }
}

/// What latent attention multiplies its scores by: YaRN's growth of logits, squared, where the file gives it for all dimensions.
pub fn latent_score_factor(settings: &Settings, visible: Visible) -> Result<f64, SpecError> {
    let (factor, mscale) = if settings.is_gguf() {
        let Some(multiplier) = settings.opt_f64(gguf_key("rope.scaling.yarn_log_multiplier"))? else {
            return Ok(1.0);
        };
        // The converter writes a tenth of `mscale_all_dim` for every architecture with latent attention.
        (settings.f64(gguf_key("rope.scaling.factor"))?, 10.0 * multiplier)
    } else {
        let Some(value) = settings.hf("rope_parameters").or(settings.hf("rope_scaling")) else {
            return Ok(1.0);
        };
        let parameters = parameters_of_kind(value, visible)?;
        let number = |name: &str| match parameters.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => json_f64(&format!("rope_scaling.{name}"), value).map(Some),
        };
        let scaled = rope_type(parameters).is_some_and(|kind| kind != "default");
        let (true, Some(mscale)) = (scaled, number("mscale_all_dim")?) else {
            return Ok(1.0);
        };
        let factor = number("factor")?.ok_or_else(|| SpecError::MissingKey {
            key: "rope_scaling.factor".into(),
        })?;
        (factor, mscale)
    };
    let growth = yarn_mscale(factor, mscale);
    Ok(growth * growth)
}

fn gguf_rope(
    settings: &Settings,
    family: &Family,
    tensors: &mut Tensors,
    (rotary, local): (usize, LocalRope),
) -> Result<Rope, SpecError> {
    let theta = match local {
        LocalRope::OwnBase => settings.opt_f64(keys::LOCAL_ROPE_THETA)?,
        LocalRope::Same | LocalRope::Unscaled => settings.opt_f64(keys::ROPE_THETA)?,
    };
    let theta = theta.unwrap_or(DEFAULT_THETA);
    if local != LocalRope::Same {
        return Ok(plain(theta, rotary));
    }
    let scaling = if let Some(divisors) = tensors.opt_gguf_vector("rope_freqs.weight", rotary / 2)? {
        RopeScaling::Divisors(divisors)
    } else if let Some(longrope) = gguf_longrope(settings, tensors, rotary)? {
        longrope
    } else {
        gguf_scaling(settings, family)?
    };
    Ok(Rope { theta, rotary, scaling })
}

const fn gguf_key(suffix: &'static str) -> keys::Key {
    keys::Key { hf: &[], gguf: suffix }
}

fn gguf_longrope(settings: &Settings, tensors: &mut Tensors, rotary: usize) -> Result<Option<RopeScaling>, SpecError> {
    let short = tensors.opt_gguf_vector("rope_factors_short.weight", rotary / 2)?;
    let long = tensors.opt_gguf_vector("rope_factors_long.weight", rotary / 2)?;
    let (Some(short), Some(long)) = (short, long) else {
        return Ok(None);
    };
    let attention_factor = settings.opt_f64(gguf_key("rope.scaling.attn_factor"))?.unwrap_or(1.0);
    let list = |vector| LongRopeList {
        divisors: Divisors::Stored(vector),
        attention_factor,
    };
    let original_context = match settings.opt_f64(keys::ORIGINAL_CONTEXT)? {
        Some(length) => length,
        None => settings.usize(keys::CONTEXT)? as f64,
    };
    Ok(Some(RopeScaling::LongRope {
        original_context,
        short: list(short),
        long: list(long),
    }))
}

fn gguf_scaling(settings: &Settings, family: &Family) -> Result<RopeScaling, SpecError> {
    let number = |suffix: &'static str| settings.opt_f64(gguf_key(suffix));
    let needed = |suffix: &'static str| settings.f64(gguf_key(suffix));
    Ok(match settings.gguf_str("rope.scaling.type")? {
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
            // A multiplier of the logarithm belongs to the scores; cos and sin keep their length then.
            let attention_factor = match number("rope.scaling.yarn_log_multiplier")? {
                Some(_) => 1.0,
                None => match number("rope.scaling.yarn_attn_factor")? {
                    Some(whole) => whole,
                    None => number("rope.scaling.attn_factor")?.unwrap_or(1.0) * yarn_mscale(factor, 1.0),
                },
            };
            let original_context = match settings.opt_f64(keys::ORIGINAL_CONTEXT)? {
                Some(length) => length,
                None => settings.usize(keys::CONTEXT)? as f64,
            };
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                truncate: family.attention.rope.yarn_truncates,
                attention_factor,
            }
        }
        Some(other) => {
            let key = format!("{}.rope.scaling.type", settings.architecture);
            return Err(SpecError::Unsupported {
                key,
                value: other.into(),
            });
        }
    })
}
