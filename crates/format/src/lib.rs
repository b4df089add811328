//! From the bytes of a model file to named tensors and settings. This crate knows no model: it reads what a file
//! says, checks every count and offset against the file's real length, and hands out typed values or typed errors.
//!
//! - [`Checkpoint`]: one view over a GGUF file and a Hugging Face folder; start here.
//! - [`DType`] and [`blocks`]: every storage type, its layout, its scalar decoding to f32 (the oracle for kernels).
//! - [`gguf`], [`safetensors`], [`hf`]: the file formats.
//! - [`Source`]: positioned reads; nothing is ever memory-mapped. [`AtomicFile`]: files that are written whole or not at all.

mod atomic;
pub mod blocks;
mod checkpoint;
mod dtype;
pub mod gguf;
pub mod hf;
mod nonfinite;
pub mod safetensors;
mod source;
mod tensor_files;

pub use atomic::AtomicFile;
pub use checkpoint::{Checkpoint, Config, FormatError};
pub use dtype::{DType, DTypeError};
pub use source::{DIRECT_ALIGN, ReadAt, Source, SourceError};
pub use tensor_files::{TensorFiles, TensorInfo};
