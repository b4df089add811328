//! Hashes of logits, recorded in `tests/hashes`: whatever changes a bit of any model's numbers changes one of them.

use std::fmt;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::tests_folder;

/// FNV-1a of 64 bits over little-endian f32, in order.
#[derive(Clone, Copy)]
pub struct LogitHash(u64);

impl LogitHash {
    pub fn new() -> LogitHash {
        LogitHash(0xcbf2_9ce4_8422_2325)
    }

    pub fn add(&mut self, logits: &[f32]) {
        for byte in logits.iter().flat_map(|x| x.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl fmt::Display for LogitHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One file of hashes: `{model: {numerics: hash}}`.
pub struct Hashes {
    path: PathBuf,
    models: Map<String, Value>,
}

impl Hashes {
    /// The file with this name in `tests/hashes`; empty if there is none.
    pub fn open(name: &str) -> Hashes {
        let path = tests_folder().join("hashes").join(name);
        let models = std::fs::read(&path).map_or_else(|_| Map::new(), |text| serde_json::from_slice(&text).unwrap());
        Hashes { path, models }
    }

    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.models.keys().map(String::as_str)
    }

    /// The recorded hash. Absent: a new model, whose hashes have to be recorded first.
    pub fn get(&self, model: &str, numerics: &str) -> &str {
        let hash = self
            .models
            .get(model)
            .and_then(|model| model.get(numerics))
            .and_then(Value::as_str);
        hash.unwrap_or_else(|| {
            panic!(
                "no hash of {model} ({numerics}) in {}: see its README",
                self.path.display()
            )
        })
    }

    pub fn set(&mut self, model: &str, numerics: &str, hash: LogitHash) {
        self.models.entry(model).or_insert_with(|| json!({}))[numerics] = json!(hash.to_string());
    }

    /// Writes the file, models sorted by name, one a line.
    pub fn save(mut self) {
        self.models.sort_keys();
        let lines: Vec<String> = self
            .models
            .iter()
            .map(|(name, hashes)| format!("  {name:?}: {hashes}"))
            .collect();
        std::fs::create_dir_all(self.path.parent().expect("a file in a folder")).unwrap();
        std::fs::write(&self.path, format!("{{\n{}\n}}\n", lines.join(",\n"))).unwrap();
    }
}
