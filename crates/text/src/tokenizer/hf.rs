//! A tokenizer from the files of a Hugging Face checkpoint.

use serde_json::Value;

use super::added::Matcher;
use super::error::TokenizerError;
use super::pipeline::Pipeline;
use super::{Algorithm, SpecialIds, TokenTable, Tokenizer, byte_char, byte_piece, control_ids, decoder};
use crate::detokenize::Step;

/// The files that describe a tokenizer; null where a file is absent.
#[derive(Debug, Clone, Copy)]
pub struct HfFiles<'a> {
    /// Bytes of tokenizer.json.
    pub tokenizer: &'a [u8],
    /// tokenizer_config.json.
    pub tokenizer_config: &'a Value,
    /// generation_config.json, for its `eos_token_id`.
    pub generation_config: &'a Value,
}

impl Tokenizer {
    /// Reads a tokenizer from tokenizer.json and the configurations beside it.
    ///
    /// # Errors
    /// [`TokenizerError::BadFile`] for a file that the library cannot read, [`TokenizerError::Unsupported`] for what this crate does not
    /// do, [`TokenizerError::SpecialOutOfRange`] and [`TokenizerError::SparseIds`] for ids that make no sense.
    pub fn from_hf(files: &HfFiles<'_>) -> Result<Self, TokenizerError> {
        let parts = Pipeline::from_json(files.tokenizer)?;
        let steps = decoder::steps(&parts.decoder)?;
        let special: std::collections::HashSet<u32> = parts.added.iter().filter(|t| t.special).map(|t| t.id).collect();
        let mut tokens = TokenTable::new(parts.texts.iter().map(Option::as_deref), |id| special.contains(&id));
        let byte_level = steps.iter().any(|s| matches!(s, Step::ByteLevel { .. }));
        tokens.find_bytes(if byte_level { byte_char } else { byte_piece });
        let id_of = |key: &str| token_id(&files.tokenizer_config[key], &parts.texts);
        let names = SpecialIds {
            bos: id_of("bos_token"),
            eos: id_of("eos_token"),
            unknown: id_of("unk_token"),
            padding: id_of("pad_token"),
        };
        let mut pipeline = parts.pipeline;
        pipeline.set_control(&parts.added);
        let control = control_ids(&parts.added);
        let (late, raw) = parts.added.into_iter().partition::<Vec<_>, _>(|t| t.normalized);
        let late_added = Matcher::new(late, |t| pipeline.normalized(&t.content));
        let mut around = parts.around;
        around_from_config(&mut around, files.tokenizer_config, &names);
        let ends = ends(files.generation_config, names.eos, tokens.ends.len())?;
        let added = Matcher::new(raw, |t| t.content.clone());
        Ok(Tokenizer {
            algorithm: Algorithm::Library(Box::new(pipeline)),
            added,
            late_added,
            tokens,
            decoder: steps,
            around,
            names,
            ends,
            control,
        })
    }
}

/// The id of a token given by its text or as an object with `content`.
fn token_id(value: &Value, texts: &[Option<String>]) -> Option<u32> {
    let text = value.as_str().or_else(|| value["content"].as_str())?;
    let index = texts.iter().position(|t| t.as_deref() == Some(text))?;
    u32::try_from(index).ok()
}

/// `add_bos_token` and `add_eos_token` of the configuration decide over the post-processor where they are given.
fn around_from_config(around: &mut (Vec<u32>, Vec<u32>), config: &Value, names: &SpecialIds) {
    if let (Some(add), Some(bos)) = (config["add_bos_token"].as_bool(), names.bos) {
        around.0.retain(|&id| id != bos);
        if add {
            around.0.insert(0, bos);
        }
    }
    if let (Some(add), Some(eos)) = (config["add_eos_token"].as_bool(), names.eos) {
        around.1.retain(|&id| id != eos);
        if add {
            around.1.push(eos);
        }
    }
}

fn ends(generation: &Value, eos: Option<u32>, tokens: usize) -> Result<Vec<u32>, TokenizerError> {
    let mut ends: Vec<u32> = eos.into_iter().collect();
    let listed = &generation["eos_token_id"];
    for id in listed
        .as_array()
        .map_or(std::slice::from_ref(listed), Vec::as_slice)
        .iter()
        .filter_map(Value::as_i64)
    {
        let out_of_range = TokenizerError::SpecialOutOfRange {
            key: "generation_config.json: eos_token_id",
            id,
            tokens,
        };
        let id = u32::try_from(id)
            .ok()
            .filter(|&id| (id as usize) < tokens)
            .ok_or(out_of_range)?;
        ends.push(id);
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}
