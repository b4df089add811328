//! Which layers see a window only, and which rotate.

use goldcrest_format::Config;
use goldcrest_format::gguf::{Array, Value as GgufValue};
use serde_json::Value;

use super::SpecError;
use super::keys::{self, Settings, wrong_type};
use crate::families::{Family, RopeLayers, Windows};
use crate::spec::Visible;

/// What each layer sees and whether it rotates.
pub struct LayerKinds {
    pub visible: Vec<Visible>,
    pub rotates: Vec<bool>,
}

impl LayerKinds {
    pub fn read(settings: &Settings, family: &Family, layers: usize) -> Result<LayerKinds, SpecError> {
        let rotates = rotating_layers(settings, family, layers)?;
        let visible = match family.attention.windows {
            Windows::Chunks(key, default) => {
                // A config may say null: no chunks.
                let absent = if settings.hf_has(key) { None } else { Some(default) };
                let chunk = positive(settings, key)?.or(absent);
                let chunked = |rotates: &bool| match chunk {
                    Some(positions) if *rotates => Visible::Chunk(positions),
                    _ => Visible::All,
                };
                rotates.iter().map(chunked).collect()
            }
            _ => match windowed_layers(settings, family, layers)? {
                None => vec![Visible::All; layers],
                Some((windowed, positions)) => windowed
                    .into_iter()
                    .map(|windowed| {
                        if windowed {
                            Visible::Window(positions)
                        } else {
                            Visible::All
                        }
                    })
                    .collect(),
            },
        };
        let rotates = match family.attention.rope.layers {
            RopeLayers::Windowed { or_all_without } => {
                let none = window(settings)?.is_none();
                visible
                    .iter()
                    .map(|visible| *visible != Visible::All || (none && or_all_without))
                    .collect()
            }
            RopeLayers::WindowedOrDense(_) => visible.iter().map(|visible| *visible != Visible::All).collect(),
            _ => rotates,
        };
        Ok(LayerKinds { visible, rotates })
    }
}

/// A number of positions above zero. GGUF files write 0 for none.
fn positive(settings: &Settings, key: keys::Key) -> Result<Option<usize>, SpecError> {
    match settings.opt_usize(key)? {
        Some(0) if settings.is_gguf() => Ok(None),
        Some(0) => Err(settings.bad_value(key, 0, "a number of positions above zero")),
        other => Ok(other),
    }
}

/// The window of windowed layers, if any sees one.
fn window(settings: &Settings) -> Result<Option<usize>, SpecError> {
    match settings.opt_bool(keys::USE_WINDOW)? {
        Some(false) => Ok(None),
        _ => positive(settings, keys::WINDOW),
    }
}

/// For each layer whether it sees a window, and the window; `None` if no layer does.
fn windowed_layers(
    settings: &Settings,
    family: &Family,
    layers: usize,
) -> Result<Option<(Vec<bool>, usize)>, SpecError> {
    if matches!(family.attention.windows, Windows::Never) {
        return Ok(None);
    }
    let window = window(settings)?;
    if let Some(types) = settings.opt_per_layer(keys::LAYER_TYPES, layers)? {
        return typed_windows(settings, types, window);
    }
    let Some(window) = window else { return Ok(None) };
    if let Some(listed) = gguf_pattern(settings, layers)? {
        return Ok(Some((listed, window)));
    }
    if let Some(flags) = settings.opt_per_layer(keys::WINDOWED_LAYERS, layers)? {
        return Ok(Some((flags.iter().map(|flag| flag != 0).collect(), window)));
    }
    let windowed = |layer: &dyn Fn(usize) -> bool| Ok(Some(((0..layers).map(layer).collect(), window)));
    match family.attention.windows {
        Windows::Never | Windows::Chunks(..) => Ok(None),
        Windows::All => windowed(&|_| true),
        Windows::Typed => Err(settings.missing(keys::LAYER_TYPES)),
        Windows::Upper if settings.opt_bool(keys::USE_WINDOW)? == Some(true) => {
            let first = settings.usize(keys::FIRST_WINDOW_LAYER)?;
            windowed(&|layer| layer >= first)
        }
        Windows::Upper => Ok(None),
        Windows::Period(default) => {
            let period = match settings.hf("sliding_window_pattern") {
                // EXAONE writes a string of L and G, and `layer_types`, which says the same, beside it.
                Some(Value::String(pattern)) => pattern.len(),
                _ => settings.opt_usize(keys::WINDOW_PERIOD)?.unwrap_or(default),
            };
            let period = period.max(1);
            windowed(&|layer| !(layer + 1).is_multiple_of(period))
        }
    }
}

/// `layer_types`: kinds of attention, among kinds of other blocks.
fn typed_windows(
    settings: &Settings,
    types: &[Value],
    window: Option<usize>,
) -> Result<Option<(Vec<bool>, usize)>, SpecError> {
    let mut windowed = Vec::with_capacity(types.len());
    for kind in types {
        let Some(name) = kind.as_str() else {
            return Err(wrong_type("layer_types", "a kind of layer", kind));
        };
        if name == "sliding_attention" && window.is_none() {
            return Err(settings.missing(keys::WINDOW));
        }
        if !KNOWN_LAYER_TYPES.contains(&name) {
            return Err(wrong_type("layer_types", &KNOWN_LAYER_TYPES.join(", "), kind));
        }
        windowed.push(name == "sliding_attention");
    }
    Ok(Some((windowed, window.unwrap_or(0))))
}

/// Kinds of layers that `layer_types` may name.
pub const KNOWN_LAYER_TYPES: &[&str] = &[
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
    "attention",
    "mamba",
    "conv",
];

/// GGUF files may list the windowed layers, as truth values or numbers.
fn gguf_pattern(settings: &Settings, layers: usize) -> Result<Option<Vec<bool>>, SpecError> {
    let Config::Gguf(metadata) = settings.checkpoint().config() else {
        return Ok(None);
    };
    let key = settings.spelling(keys::WINDOW_PERIOD);
    let Some(GgufValue::Array(list)) = metadata.get(&key) else {
        return Ok(None);
    };
    let mut listed: Vec<bool> = match list {
        Array::Bool(flags) => flags.clone(),
        numbers => match numbers.integers::<i64>() {
            Some(numbers) => numbers.iter().map(|&n| n != 0).collect(),
            None => Vec::new(),
        },
    };
    if listed.len() < layers {
        return Err(SpecError::BadValue {
            key,
            value: format!("{} entries that are true or false", listed.len()),
            expected: format!("one for each of {layers} layers"),
        });
    }
    listed.truncate(layers);
    Ok(Some(listed))
}

fn rotating_layers(settings: &Settings, family: &Family, layers: usize) -> Result<Vec<bool>, SpecError> {
    if let RopeLayers::Named(key) = family.attention.rope.layers {
        let rotate = match settings.is_gguf() {
            true => settings.opt_bool(key)?.unwrap_or(true),
            false => settings.opt_str(key)? == Some("rope"),
        };
        return Ok(vec![rotate; layers]);
    }
    let RopeLayers::Listed {
        list,
        period,
        default_period,
    } = family.attention.rope.layers
    else {
        let all = match family.attention.rope.layers {
            RopeLayers::None => false,
            RopeLayers::UnlessNullBase => !super::rope::base_is_null(settings),
            _ => true,
        };
        return Ok(vec![all; layers]);
    };
    if let Some(flags) = settings.opt_per_layer(list, layers)? {
        return Ok(flags.iter().map(|flag| flag != 0).collect());
    }
    let period = settings.opt_usize(period)?.unwrap_or(default_period).max(1);
    Ok((0..layers).map(|layer| !(layer + 1).is_multiple_of(period)).collect())
}
