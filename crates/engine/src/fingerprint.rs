//! Which model it is, in 32 bytes.

use std::fmt::Write;

use goldcrest_format::{Checkpoint, FormatError};
use goldcrest_model::ModelSpec;

use crate::digest::{Bytes32, Digester};

/// Bytes of each tensor that take part: enough to tell models apart that differ in nothing but training.
const SAMPLE_BYTES: usize = 64;

/// The digest of a model's spec, of its table of tensors (name, type, shape, place) and of the first bytes of each tensor's data.
pub(crate) fn fingerprint(spec: &ModelSpec, checkpoint: &Checkpoint) -> Result<Bytes32, FormatError> {
    let mut digester = Digester::default();
    // Text that shows every field; a digester never refuses it.
    let _ = writeln!(digester, "{spec:?}");
    let mut sample = [0; SAMPLE_BYTES];
    for tensor in checkpoint.tensors() {
        let _ = writeln!(digester, "{tensor:?}");
        let bytes = usize::try_from(tensor.bytes).unwrap_or(usize::MAX);
        let sample = &mut sample[..bytes.min(SAMPLE_BYTES)];
        checkpoint.read(tensor, 0, sample)?;
        digester.update(sample);
    }
    Ok(digester.finish())
}
