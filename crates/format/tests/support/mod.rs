//! Builders of files for tests.
#![allow(dead_code)] // each test binary uses its own part

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Value type ids of the format.
pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

/// Writes GGUF files, also wrong ones: every field can be given as is.
#[derive(Clone)]
pub struct GgufBuilder {
    pub magic: [u8; 4],
    pub version: u32,
    /// Counts that replace the true ones.
    pub tensor_count: Option<u64>,
    pub key_count: Option<u64>,
    keys: Vec<u8>,
    keys_written: u64,
    table: Vec<u8>,
    tensors_written: u64,
    data: Vec<u8>,
}

impl GgufBuilder {
    pub fn new() -> GgufBuilder {
        GgufBuilder {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            key_count: None,
            keys: Vec::new(),
            keys_written: 0,
            table: Vec::new(),
            tensors_written: 0,
            data: Vec::new(),
        }
    }

    /// A key with any value bytes.
    pub fn key(mut self, key: &[u8], value_type: u32, value: &[u8]) -> Self {
        self.keys.extend(string(key));
        self.keys.extend(value_type.to_le_bytes());
        self.keys.extend(value);
        self.keys_written += 1;
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.key(key.as_bytes(), U32, &value.to_le_bytes())
    }

    pub fn str(self, key: &str, value: &str) -> Self {
        self.key(key.as_bytes(), STRING, &string(value.as_bytes()))
    }

    /// A table row with any fields; dimensions innermost first, as in the file.
    pub fn row(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        self.table.extend(string(name.as_bytes()));
        self.table.extend((dims.len() as u32).to_le_bytes());
        self.table.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        self.table.extend(type_id.to_le_bytes());
        self.table.extend(offset.to_le_bytes());
        self.tensors_written += 1;
        self
    }

    /// An F32 tensor with its data, at the default alignment.
    pub fn f32_tensor(mut self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        let offset = self.data.len() as u64;
        self.data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.row(name, dims, 0, offset)
    }

    pub fn data(mut self, bytes: &[u8]) -> Self {
        self.data.extend(bytes);
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let mut file = self.magic.to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(self.tensor_count.unwrap_or(self.tensors_written).to_le_bytes());
        file.extend(self.key_count.unwrap_or(self.keys_written).to_le_bytes());
        file.extend(&self.keys);
        file.extend(&self.table);
        if !self.data.is_empty() {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(&self.data);
        }
        file
    }
}

/// Length and bytes.
pub fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u64).to_le_bytes().to_vec();
    out.extend(bytes);
    out
}

/// An array value: element type, count, elements.
pub fn array(element_type: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    let mut out = element_type.to_le_bytes().to_vec();
    out.extend(count.to_le_bytes());
    out.extend(elements);
    out
}

/// A safetensors file with this header and data.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = string(header.as_bytes());
    out.extend(data);
    out
}

/// A folder that is removed at the end of the test.
pub struct TempFolder(PathBuf);

impl TempFolder {
    /// `name` must be unique among the tests of a binary.
    pub fn new(name: &str) -> TempFolder {
        let path = std::env::temp_dir().join(format!("goldcrest-format-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        TempFolder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // A folder that stays behind fails no test.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Time that this thread has computed, where the system tells; else the time of day. A busy machine stretches the
/// latter only.
pub fn thread_time() -> Duration {
    let on_cpu = fs::read_to_string("/proc/thread-self/schedstat").ok();
    match on_cpu.as_deref().and_then(|text| text.split(' ').next()?.parse().ok()) {
        Some(ns) => Duration::from_nanos(ns),
        None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
    }
}

/// A folder of the repository's `tests`.
pub fn repository_tests(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(name)
}
