//! Which files of a repository make a model.

/// Files beside safetensors weights that a model may have and that its opening reads.
pub(crate) const COMPANIONS: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "model.safetensors.index.json",
];
const DEFAULT_QUANT: &str = "Q4_K_M";

/// The files to have, and which one to open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) files: Vec<String>,
    /// The GGUF file to open; `None` for safetensors, where the folder is opened.
    pub(crate) entry: Option<String>,
}

/// Why a repository gives no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// No weights of a known format.
    #[error("it holds neither GGUF nor safetensors weights")]
    NoWeights,
    /// The quantisation is not among the files.
    #[error("it has no GGUF file for {quant:?}; there are: {}", available.join(", "))]
    NoQuant {
        /// As asked for.
        quant: String,
        /// GGUF files, first parts only.
        available: Vec<String>,
    },
    /// Parts of the model are missing, as after an interrupted download.
    #[error("files are missing: {}", missing.join(", "))]
    Incomplete {
        /// The missing files.
        missing: Vec<String>,
    },
}

/// Chooses among the file names of a repository. GGUF comes first, by the quantisation asked for, else Q4_K_M, else the first
/// file; a repository without any is taken as safetensors.
pub(crate) fn select(names: &[String], quant: Option<&str>) -> Result<Selection, SelectError> {
    let mut ggufs: Vec<&String> = names.iter().filter(|name| is_gguf_model(name)).collect();
    ggufs.sort();
    let Some(first) = ggufs.first() else {
        return match quant {
            Some(quant) => Err(SelectError::NoQuant {
                quant: quant.to_owned(),
                available: Vec::new(),
            }),
            None => select_safetensors(names),
        };
    };
    let of_quant = |quant: &str| ggufs.iter().find(|name| has_quant(name, quant));
    let entry = match quant {
        Some(quant) => of_quant(quant).ok_or_else(|| SelectError::NoQuant {
            quant: quant.to_owned(),
            available: ggufs.iter().map(ToString::to_string).collect(),
        })?,
        None => of_quant(DEFAULT_QUANT).unwrap_or(first),
    };
    let files = shards(entry);
    require(names, &files)?;
    Ok(Selection {
        entry: Some((*entry).clone()),
        files,
    })
}

fn select_safetensors(names: &[String]) -> Result<Selection, SelectError> {
    let weights: Vec<&String> = names
        .iter()
        .filter(|name| !name.contains('/') && name.ends_with(".safetensors"))
        .collect();
    // Some repositories hold the same weights twice, the second time in their maker's own layout.
    let published: Vec<&String> = weights
        .iter()
        .copied()
        .filter(|name| name.starts_with("model"))
        .collect();
    let weights = if published.is_empty() { weights } else { published };
    let Some(first) = weights.first() else {
        return Err(SelectError::NoWeights);
    };
    require(names, &shards(first))?;
    require(names, &["config.json".to_owned()])?;
    // Weights come last, so that a snapshot that has them has everything.
    let companions = names.iter().filter(|name| COMPANIONS.contains(&name.as_str()));
    Ok(Selection {
        files: companions.chain(weights).cloned().collect(),
        entry: None,
    })
}

fn require(names: &[String], files: &[String]) -> Result<(), SelectError> {
    let missing: Vec<String> = files.iter().filter(|file| !names.contains(file)).cloned().collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(SelectError::Incomplete { missing })
    }
}

/// Whether a name is that of weights at all.
pub(crate) fn is_weights(name: &str) -> bool {
    name.ends_with(".gguf") || name.ends_with(".safetensors")
}

/// A GGUF file that can be opened as a model: no projector of pictures, no calibration matrix, no later shard.
fn is_gguf_model(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let other = file.contains("mmproj") || file.contains("imatrix");
    file.ends_with(".gguf") && !other && shard(name).is_none_or(|shard| shard.index == 1)
}

/// Whether the name carries the quantisation as a whole word, in any case: `Q4_K` is not in `model-Q4_K_M.gguf`.
fn has_quant(name: &str, quant: &str) -> bool {
    let (name, quant) = (name.to_ascii_uppercase(), quant.to_ascii_uppercase());
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    name.match_indices(&quant).any(|(at, found)| {
        let before = name.get(..at).and_then(|text| text.chars().next_back());
        let after = name.get(at + found.len()..).and_then(|text| text.chars().next());
        !is_part(before) && !is_part(after)
    })
}

struct Shard<'a> {
    stem: &'a str,
    ending: &'a str,
    index: u32,
    count: u32,
}

/// Takes `stem-00001-of-00003.gguf` apart.
fn shard(name: &str) -> Option<Shard<'_>> {
    let (rest, ending) = name.rsplit_once('.')?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, index) = rest.rsplit_once('-')?;
    if count.len() != 5 || index.len() != 5 {
        return None;
    }
    let (index, count) = (index.parse().ok()?, count.parse().ok()?);
    (1..=count).contains(&index).then_some(Shard {
        stem,
        ending,
        index,
        count,
    })
}

/// All files of the set that a file belongs to; a file that is no shard is its own set.
fn shards(name: &str) -> Vec<String> {
    match shard(name) {
        Some(Shard {
            stem, ending, count, ..
        }) => (1..=count)
            .map(|i| format!("{stem}-{i:05}-of-{count:05}.{ending}"))
            .collect(),
        None => vec![name.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    fn entry(list: &[&str], quant: Option<&str>) -> Option<String> {
        select(&names(list), quant).ok().and_then(|selection| selection.entry)
    }

    #[test]
    fn quantisation_by_whole_word_then_default_then_first() {
        let repository = [
            "README.md",
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m-Q2_K.gguf",
            "m.IQ1_S.gguf",
            "mmproj-F16.gguf",
        ];
        assert_eq!(entry(&repository, None).as_deref(), Some("m-Q4_K_M.gguf"));
        assert_eq!(entry(&repository, Some("q4_k_s")).as_deref(), Some("m-Q4_K_S.gguf"));
        assert_eq!(entry(&repository, Some("IQ1_S")).as_deref(), Some("m.IQ1_S.gguf"));
        assert_eq!(entry(&repository, Some("Q4_K")), None);
        assert_eq!(entry(&repository, Some("F16")), None);
        assert_eq!(
            entry(&["b-Q8_0.gguf", "a-Q5_0.gguf"], None).as_deref(),
            Some("a-Q5_0.gguf")
        );
        assert!(
            matches!(select(&names(&repository), Some("Q9")), Err(SelectError::NoQuant { available, .. }) if available.len() == 4)
        );
    }

    #[test]
    fn shards_come_together_or_not_at_all() {
        let whole = names(&["Q8/m-Q8_0-00001-of-00002.gguf", "Q8/m-Q8_0-00002-of-00002.gguf"]);
        let selection = select(&whole, Some("Q8_0")).expect("complete");
        assert_eq!(
            (selection.files.len(), selection.entry.as_deref()),
            (2, Some("Q8/m-Q8_0-00001-of-00002.gguf"))
        );
        let missing = names(&["Q8/m-Q8_0-00002-of-00002.gguf"]);
        assert_eq!(select(&whole[..1], None), Err(SelectError::Incomplete { missing }));
    }

    #[test]
    fn safetensors_with_companions() {
        let repository = names(&[
            "config.json",
            "tokenizer.json",
            "README.md",
            "consolidated.safetensors",
            "model.safetensors",
            "x/model.safetensors",
        ]);
        let selection = select(&repository, None).expect("complete");
        assert_eq!(
            selection,
            Selection {
                files: names(&["config.json", "tokenizer.json", "model.safetensors"]),
                entry: None
            }
        );
        assert_eq!(
            select(&repository[1..], None),
            Err(SelectError::Incomplete {
                missing: names(&["config.json"])
            })
        );
        assert_eq!(select(&names(&["config.json"]), None), Err(SelectError::NoWeights));
        assert!(matches!(
            select(&repository, Some("Q8_0")),
            Err(SelectError::NoQuant { .. })
        ));
        let half = names(&["config.json", "model-00001-of-00002.safetensors"]);
        assert!(matches!(select(&half, None), Err(SelectError::Incomplete { .. })));
    }

    #[test]
    fn an_absurd_shard_count_is_bounded_by_five_digits() {
        assert_eq!(shards("m-00001-of-99999.gguf").len(), 99_999);
        assert_eq!(shards("m-1-of-9999999999.gguf").len(), 1);
    }
}
