//! One view over the formats: named tensors, settings, chat template.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::blocks::BlockError;
use crate::gguf::{self, GgufError, MetadataError};
use crate::hf::{self, HfError, Template};
use crate::safetensors::{self, SafetensorsError, Weights};
use crate::{Source, SourceError, TensorFiles};

/// The settings that come with the weights, as the file has them.
#[derive(Debug, Clone)]
pub enum Config {
    /// Metadata of a GGUF file.
    Gguf(gguf::Metadata),
    /// `config.json` of a Hugging Face folder.
    Hf(Map<String, Value>),
}

/// Why a checkpoint could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// A file cannot be opened or read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A GGUF file is refused.
    #[error("{}: {error}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// Key or tensor, offset and reason.
        #[source]
        error: GgufError,
    },
    /// A metadata value of a GGUF file has the wrong type.
    #[error("{}: {error}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// Key, offset and reason.
        #[source]
        error: MetadataError,
    },
    /// A safetensors file is refused.
    #[error("{}: {error}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Tensor, offset and reason.
        #[source]
        error: SafetensorsError,
    },
    /// A file of a Hugging Face folder is refused.
    #[error(transparent)]
    Hf(#[from] HfError),
    /// A path without weights.
    #[error("{} holds no model: a .gguf file, or config.json beside model.safetensors (or its index) is needed", path.display())]
    NoWeights {
        /// The path given.
        path: PathBuf,
    },
    /// Weights without settings.
    #[error("{} has no config.json beside it", path.display())]
    NoConfig {
        /// The weights.
        path: PathBuf,
    },
    /// A folder with more than one model.
    #[error("{} holds {count} .gguf files: name the one to open", path.display())]
    Ambiguous {
        /// The folder.
        path: PathBuf,
        /// Models found.
        count: usize,
    },
    /// A range outside a tensor.
    #[error("tensor {name} at byte {offset} has {bytes} bytes: {wanted} bytes from {from} are not in it")]
    Range {
        /// The tensor.
        name: String,
        /// Offset of its data in the file.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// Start of the range in the tensor.
        from: u64,
        /// Length of the range.
        wanted: u64,
    },
    /// The output buffer does not have the size of the tensor or of whole rows.
    #[error("tensor {name}: the output has {found} elements, {wanted} are needed")]
    OutputLength {
        /// The tensor.
        name: String,
        /// Elements of the buffer.
        found: usize,
        /// Elements needed (for rows: the size of one row, of which the buffer must hold whole ones).
        wanted: usize,
    },
    /// The data cannot be decoded.
    #[error("tensor {name} at byte {offset}: {error}")]
    Decode {
        /// The tensor.
        name: String,
        /// Offset of its data in the file.
        offset: u64,
        /// The reason.
        #[source]
        error: BlockError,
    },
}

/// An open model: weights by name, settings, chat template. Shared freely between threads.
#[derive(Debug)]
pub struct Checkpoint {
    tensors: TensorFiles,
    config: Config,
    generation_config: Map<String, Value>,
    templates: Vec<Template>,
    folder: Option<hf::Folder>,
}

impl Deref for Checkpoint {
    type Target = TensorFiles;

    fn deref(&self) -> &TensorFiles {
        &self.tensors
    }
}

impl Checkpoint {
    /// Opens a `.gguf` file (all parts of a split one), a Hugging Face folder, a `.safetensors` file beside its
    /// `config.json`, or a folder that holds one `.gguf` model.
    pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
        if path.is_dir() {
            return Self::open_folder(path);
        }
        let source = Source::open(path)?;
        if !gguf::is_gguf(&source) && path.extension().is_some_and(|extension| extension == "safetensors") {
            return Self::open_safetensors(path);
        }
        Self::open_gguf(path)
    }

    /// Opens a file of tensors that is no model: `.gguf`, or safetensors without a configuration, which is empty then.
    pub fn open_tensors(path: &Path) -> Result<Checkpoint, FormatError> {
        if gguf::is_gguf(&Source::open(path)?) {
            return Self::open_gguf(path);
        }
        let weights = safetensors::open_file(path)?;
        Ok(Checkpoint {
            tensors: TensorFiles::new(weights.sources, weights.tensors),
            config: Config::Hf(Map::new()),
            generation_config: Map::new(),
            templates: Vec::new(),
            folder: None,
        })
    }

    fn open_folder(path: &Path) -> Result<Checkpoint, FormatError> {
        let folder = hf::Folder::new(path);
        if let Some(config) = folder.config()?
            && let Some(weights) = safetensors::open_folder(&folder)?
        {
            return Self::from_folder(folder, config, weights);
        }
        let files = hf::files_with(path, "gguf")?;
        // The parts of a split model count once.
        let firsts: Vec<&PathBuf> = files.iter().filter(|file| gguf::is_first_part(file)).collect();
        match firsts.as_slice() {
            [only] => Self::open_gguf(only),
            [] if safetensors::open_folder(&folder)?.is_some() => Err(FormatError::NoConfig { path: path.to_owned() }),
            [] => Err(FormatError::NoWeights { path: path.to_owned() }),
            several => Err(FormatError::Ambiguous {
                path: path.to_owned(),
                count: several.len(),
            }),
        }
    }

    fn open_safetensors(path: &Path) -> Result<Checkpoint, FormatError> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = hf::Folder::new(parent.unwrap_or(Path::new(".")));
        let config = folder
            .config()?
            .ok_or_else(|| FormatError::NoConfig { path: path.to_owned() })?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let weights = if safetensors::is_shard(&folder, name)? {
            safetensors::open_index(&folder)?.ok_or_else(|| FormatError::NoWeights { path: path.to_owned() })?
        } else {
            safetensors::open_file(path)?
        };
        Self::from_folder(folder, config, weights)
    }

    fn from_folder(
        folder: hf::Folder,
        config: Map<String, Value>,
        weights: Weights,
    ) -> Result<Checkpoint, FormatError> {
        Ok(Checkpoint {
            tensors: TensorFiles::new(weights.sources, weights.tensors),
            config: Config::Hf(config),
            generation_config: folder.generation_config()?,
            templates: folder.templates()?,
            folder: Some(folder),
        })
    }

    fn open_gguf(path: &Path) -> Result<Checkpoint, FormatError> {
        let parts = gguf::open(path)?;
        let templates = gguf_templates(&parts.metadata);
        let templates = templates.map_err(|error| FormatError::Metadata {
            path: path.to_owned(),
            error,
        })?;
        Ok(Checkpoint {
            tensors: TensorFiles::new(parts.sources, parts.tensors),
            config: Config::Gguf(parts.metadata),
            generation_config: Map::new(),
            templates,
            folder: None,
        })
    }

    /// The same model with its weights read from what `map` makes of each file: something that counts reads, or fails.
    pub fn map_sources(self, map: impl FnMut(&Source) -> Source) -> Checkpoint {
        Checkpoint {
            tensors: self.tensors.map_sources(map),
            ..self
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The settings, to be changed in memory before a model is built from them.
    pub fn config_mut(&mut self) -> &mut Config {
        &mut self.config
    }

    /// `generation_config.json`; empty for GGUF.
    pub fn generation_config(&self) -> &Map<String, Value> {
        &self.generation_config
    }

    /// The chat template for plain chats: the one called `default`, else the only one.
    pub fn chat_template(&self) -> Option<&str> {
        let default = self.templates.iter().find(|template| template.name == "default");
        match (default, self.templates.as_slice()) {
            (Some(template), _) => Some(&template.text),
            (None, [only]) => Some(&only.text),
            _ => None,
        }
    }

    /// All chat templates (some models have a second one called `tool_use`).
    pub fn chat_templates(&self) -> &[Template] {
        &self.templates
    }

    /// The folder of a Hugging Face model, for its tokenizer files; `None` for GGUF.
    pub fn files(&self) -> Option<&hf::Folder> {
        self.folder.as_ref()
    }
}

/// `tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for further ones.
fn gguf_templates(metadata: &gguf::Metadata) -> Result<Vec<Template>, MetadataError> {
    const KEY: &str = "tokenizer.chat_template";
    let mut templates = Vec::new();
    for (key, _) in metadata.iter() {
        let name = match key.strip_prefix(KEY) {
            Some("") => "default",
            Some(rest) if rest.starts_with('.') => &rest[1..],
            _ => continue,
        };
        templates.push(Template {
            name: name.to_owned(),
            text: metadata.str(key)?.to_owned(),
        });
    }
    Ok(templates)
}
