//! What commands write: files that appear whole or not at all, and f32 tensors as safetensors.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use goldcrest_format::AtomicFile;
use serde_json::json;

/// A safetensors file begins its data at a multiple of this, bytes.
const DATA_ALIGNMENT: usize = 8;

/// Values that become bytes at once.
const PIECE_VALUES: usize = 1 << 14;

/// Why a file was not written. Nothing is left behind, and a file of that name is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The system refused.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Not as many values as the shapes have.
    #[error("{}: {found} values for tensors of {expected}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Values given.
        found: usize,
        /// Values of the shapes.
        expected: usize,
    },
}

impl WriteError {
    /// What makes an error of the system one of writing `path`.
    fn at(path: &Path) -> impl Fn(io::Error) -> WriteError {
        move |source| WriteError::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// Writes a file, whole or not at all.
///
/// # Errors
/// [`WriteError::Io`].
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    WholeFile::create(path)?.finish(bytes)
}

/// A file whose content is not known yet.
#[derive(Debug)]
pub struct WholeFile {
    file: AtomicFile,
    path: PathBuf,
}

impl WholeFile {
    /// Begins a file, which is nowhere to be seen until it is finished.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn create(path: &Path) -> Result<WholeFile, WriteError> {
        Ok(WholeFile {
            file: AtomicFile::create(path).map_err(WriteError::at(path))?,
            path: path.to_owned(),
        })
    }

    /// Puts it in its place.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn finish(mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let written = self.file.write_all(bytes).and_then(|()| self.file.finish());
        written.map_err(WriteError::at(&self.path))
    }
}

/// An f32 tensor of a file.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Outermost dimension first.
    pub shape: &'a [usize],
}

impl Tensor<'_> {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A safetensors file of f32 tensors, written as their values come: the length of the header as eight little-endian bytes, the header
/// as JSON, the values little-endian.
pub struct TensorFile {
    file: AtomicFile,
    path: PathBuf,
    expected: usize,
    written: usize,
}

impl TensorFile {
    /// Begins a file that holds these tensors one after the other, and texts about them by key.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn create(path: &Path, tensors: &[Tensor], about: &[(&str, String)]) -> Result<TensorFile, WriteError> {
        let mut entries = serde_json::Map::new();
        if !about.is_empty() {
            let texts = about.iter().map(|(key, text)| ((*key).to_owned(), json!(text)));
            entries.insert("__metadata__".into(), texts.collect::<serde_json::Map<_, _>>().into());
        }
        let mut expected = 0;
        for tensor in tensors {
            let start = expected;
            expected += tensor.elements();
            let offsets = [start, expected].map(|elements| elements * size_of::<f32>());
            entries.insert(
                tensor.name.into(),
                json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": offsets }),
            );
        }
        let mut header = serde_json::Value::Object(entries).to_string();
        header.extend(std::iter::repeat_n(
            ' ',
            header.len().next_multiple_of(DATA_ALIGNMENT) - header.len(),
        ));
        let begun = AtomicFile::create(path).and_then(|mut file| {
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(header.as_bytes())?;
            Ok(file)
        });
        Ok(TensorFile {
            file: begun.map_err(WriteError::at(path))?,
            path: path.to_owned(),
            expected,
            written: 0,
        })
    }

    /// Appends values, in the order of the tensors.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&mut self, values: &[f32]) -> Result<(), WriteError> {
        // In pieces: values may be many, and their memory planned.
        for values in values.chunks(PIECE_VALUES) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.written += values.len();
            self.file.write_all(&bytes).map_err(WriteError::at(&self.path))?;
        }
        Ok(())
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// [`WriteError`], also if not all values came.
    pub fn finish(self) -> Result<(), WriteError> {
        if self.written != self.expected {
            let (found, expected) = (self.written, self.expected);
            return Err(WriteError::Length {
                path: self.path,
                found,
                expected,
            });
        }
        self.file.finish().map_err(WriteError::at(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A fresh folder, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("goldcrest-files-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn tensors_are_laid_out_as_published() {
        let folder = Folder::new("tensor");
        let path = folder.0.join("t.safetensors");
        let tensors = [("logits", &[2, 1][..]), ("b", &[1])].map(|(name, shape)| Tensor { name, shape });
        let mut file = TensorFile::create(&path, &tensors, &[("ids", "1,2".into())]).unwrap();
        file.write(&[1.0]).unwrap();
        file.write(&[-2.5, 4.0]).unwrap();
        file.finish().unwrap();
        let bytes = fs::read(&path).unwrap();
        let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(header_len % DATA_ALIGNMENT, 0);
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
        assert_eq!(
            header,
            json!({
                "__metadata__": { "ids": "1,2" },
                "logits": { "dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8] },
                "b": { "dtype": "F32", "shape": [1], "data_offsets": [8, 12] },
            })
        );
        assert_eq!(
            bytes[8 + header_len..],
            [1.0f32, -2.5, 4.0].map(f32::to_le_bytes).concat()
        );
    }

    #[test]
    fn a_tensor_that_is_not_whole_is_not_written() {
        let folder = Folder::new("short");
        let tensor = Tensor {
            name: "logits",
            shape: &[2],
        };
        let mut file = TensorFile::create(&folder.0.join("t"), &[tensor], &[]).unwrap();
        file.write(&[1.0]).unwrap();
        assert!(matches!(
            file.finish(),
            Err(WriteError::Length {
                found: 1,
                expected: 2,
                ..
            })
        ));
        assert!(folder.names().is_empty());
    }
}
