//! A Hugging Face model folder: its JSON files and its chat template, with size limits. Files are data here: no
//! code that a folder holds or names is ever run or looked at.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::gguf::shown;
use crate::nonfinite;

/// Vocabularies with merges reach tens of megabytes.
const FILE_LIMIT_BYTES: u64 = 256 << 20;
/// A parsed JSON tree takes many times the bytes of its text, so settings have a lower limit than vocabularies.
const OBJECT_LIMIT_BYTES: u64 = 64 << 20;

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE_JINJA: &str = "chat_template.jinja";
const TEMPLATE_JSON: &str = "chat_template.json";
const TEMPLATE_KEY: &str = "chat_template";

/// Why a file of the folder was refused.
#[derive(Debug, thiserror::Error)]
pub enum HfError {
    /// The system refused.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        error: io::Error,
    },
    /// The file is larger than any real one.
    #[error("{} has more than {limit} bytes, which is the limit for such a file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes.
        limit: u64,
    },
    /// The text is not UTF-8.
    #[error("{} is not UTF-8 at byte {offset}", path.display())]
    Utf8 {
        /// The file.
        path: PathBuf,
        /// First byte that is wrong.
        offset: usize,
    },
    /// The text is not a JSON object.
    #[error("{}: line {line}, column {column}: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Line, from 1 (0 if the whole text is meant).
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the parser found.
        reason: String,
    },
    /// A key holds something else than is needed.
    #[error("{}: key {key} must be {wanted}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is needed.
        wanted: &'static str,
    },
    /// A file was asked for by something else than a plain name.
    #[error("{name} is not a plain file name")]
    Name {
        /// The refused name.
        name: String,
    },
}

/// A chat template and its name; the one for plain chats is called `default`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// `default`, `tool_use`, ...
    pub name: String,
    /// Jinja source.
    pub text: String,
}

/// A model folder. Files are read when they are asked for.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A folder; nothing is read yet.
    pub fn new(path: &Path) -> Folder {
        Folder { path: path.to_owned() }
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file `name` in this folder (at most 256 MiB), or `None` if there is none.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, HfError> {
        self.bounded(name, FILE_LIMIT_BYTES)
    }

    /// Text of the file `name`.
    pub fn text(&self, name: &str) -> Result<Option<String>, HfError> {
        let Some(bytes) = self.bytes(name)? else {
            return Ok(None);
        };
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(HfError::Utf8 {
                path: self.path.join(name),
                offset: error.utf8_error().valid_up_to(),
            }),
        }
    }

    /// The file `name` (at most 64 MiB) as a JSON object with its keys in file order.
    pub fn object(&self, name: &str) -> Result<Option<Map<String, Value>>, HfError> {
        match self.bounded(name, OBJECT_LIMIT_BYTES)? {
            Some(bytes) => parse_object(&self.path.join(name), &bytes).map(Some),
            None => Ok(None),
        }
    }

    /// `config.json`.
    pub fn config(&self) -> Result<Option<Map<String, Value>>, HfError> {
        self.object(CONFIG)
    }

    /// `generation_config.json`, empty if there is none.
    pub fn generation_config(&self) -> Result<Map<String, Value>, HfError> {
        Ok(self.object(GENERATION_CONFIG)?.unwrap_or_default())
    }

    /// `tokenizer_config.json`.
    pub fn tokenizer_config(&self) -> Result<Option<Map<String, Value>>, HfError> {
        self.object(TOKENIZER_CONFIG)
    }

    /// `special_tokens_map.json`.
    pub fn special_tokens_map(&self) -> Result<Option<Map<String, Value>>, HfError> {
        self.object("special_tokens_map.json")
    }

    /// `tokenizer.json` as bytes: the tokenizer library parses it.
    pub fn tokenizer(&self) -> Result<Option<Vec<u8>>, HfError> {
        self.bytes("tokenizer.json")
    }

    /// The chat templates: of `chat_template.jinja`, else of `chat_template.json`, else of `tokenizer_config.json`.
    pub fn templates(&self) -> Result<Vec<Template>, HfError> {
        if let Some(text) = self.text(TEMPLATE_JINJA)? {
            return Ok(vec![Template {
                name: "default".to_owned(),
                text,
            }]);
        }
        for name in [TEMPLATE_JSON, TOKENIZER_CONFIG] {
            let object = self.object(name)?;
            if let Some(value) = object.as_ref().and_then(|object| object.get(TEMPLATE_KEY)) {
                return templates(value).ok_or_else(|| HfError::Key {
                    path: self.path.join(name),
                    key: TEMPLATE_KEY.to_owned(),
                    wanted: "a string, or a list of objects with the strings `name` and `template`",
                });
            }
        }
        Ok(Vec::new())
    }

    fn bounded(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, HfError> {
        if !is_plain_name(name) {
            return Err(HfError::Name { name: shown(name) });
        }
        let path = self.path.join(name);
        let fail = |error| HfError::Read {
            path: path.clone(),
            error,
        };
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fail(error)),
            Ok(found) if !found.is_file() => {
                return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
            }
            Ok(found) if found.len() > limit => return Err(HfError::TooLarge { path, limit }),
            Ok(_) => {}
        }
        let mut bytes = Vec::new();
        // One byte more than allowed shows a file that grew after its length was taken.
        fs::File::open(&path)
            .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
            .map_err(fail)?;
        if bytes.len() as u64 > limit {
            return Err(HfError::TooLarge { path, limit });
        }
        Ok(Some(bytes))
    }
}

/// Parses a JSON object; `path` is for messages. The bare words `NaN`, `Infinity` and `-Infinity`, which Python writes though JSON has no
/// such numbers, become what other writers put there: `{"__float__": "NaN"}`.
pub fn parse_object(path: &Path, bytes: &[u8]) -> Result<Map<String, Value>, HfError> {
    let parse = |text: &[u8]| {
        serde_json::from_slice(text).map_err(|error| HfError::Json {
            path: path.to_owned(),
            line: error.line(),
            column: error.column(),
            reason: shown(&error.to_string()),
        })
    };
    let words = nonfinite::words(bytes);
    if words.is_empty() {
        return parse(bytes);
    }
    if words.len() > nonfinite::MOST_WORDS {
        return Err(HfError::Json {
            path: path.to_owned(),
            line: 0,
            column: 0,
            reason: format!(
                "there are more than {} numbers that are not finite",
                nonfinite::MOST_WORDS
            ),
        });
    }
    // Whatever else is wrong is told of the text as it is.
    parse(&nonfinite::as_numbers(bytes, &words))?;
    parse(&nonfinite::as_objects(bytes, &words))
}

/// The value of a `chat_template` key: one template, a list of named ones, or `null` for none.
pub fn templates(value: &Value) -> Option<Vec<Template>> {
    let named = |item: &Value| {
        let text = |key| item.get(key).and_then(Value::as_str).map(str::to_owned);
        Some(Template {
            name: text("name")?,
            text: text("template")?,
        })
    };
    match value {
        Value::Null => Some(Vec::new()),
        Value::String(text) => Some(vec![Template {
            name: "default".to_owned(),
            text: text.clone(),
        }]),
        Value::Array(items) => items.iter().map(named).collect(),
        _ => None,
    }
}

/// True for a name without folders: it cannot lead out of the folder that it is joined to.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let single = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    single && !name.contains(['/', '\\', '\0'])
}

/// The only file of the folder with this extension; `None` if there is none or more than one.
pub(crate) fn only_file(folder: &Path, extension: &str) -> Result<Option<PathBuf>, HfError> {
    let mut files = files_with(folder, extension)?;
    Ok(if files.len() == 1 { files.pop() } else { None })
}

/// The files of the folder with this extension, sorted by name.
pub(crate) fn files_with(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, HfError> {
    let fail = |error| HfError::Read {
        path: folder.to_owned(),
        error,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.extension().is_some_and(|found| found == extension) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The keys of a JSON object in file order, repeated ones included.
pub(crate) struct Keys(pub Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Keys, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Keys;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(KeyVisitor)
    }
}
