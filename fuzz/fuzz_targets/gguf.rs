//! Any bytes as a GGUF file: a typed refusal with a place inside the file, or a table whose every range can be read.
#![no_main]

use goldcrest_format::gguf::{self, Metadata, Strings, Value};
use goldcrest_format::{Source, blocks};
use libfuzzer_sys::fuzz_target;

/// Larger tensors are read but not decoded, to keep executions fast.
const DECODE_LIMIT_ELEMENTS: usize = 4096;

fuzz_target!(|bytes: &[u8]| {
    let source = Source::memory("input", bytes.to_vec());
    match gguf::read(&source, 0) {
        Ok(gguf) => {
            check_metadata(&gguf.metadata);
            check_tensors(&source, &gguf);
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(error.offset <= source.length(), "{error}");
        }
    }
});

fn check_metadata(metadata: &Metadata) {
    for (key, value) in metadata.iter() {
        assert_eq!(metadata.get(key).map(Value::describe), Some(value.describe()));
        assert_eq!(metadata.u32(key).is_ok(), value.integer().is_some_and(|value| u32::try_from(value).is_ok()));
        if let Ok(strings) = metadata.strings(key) {
            assert_eq!(strings.iter().collect::<Strings>(), *strings);
        }
    }
}

fn check_tensors(source: &Source, gguf: &gguf::Gguf) {
    for tensor in &gguf.tensors {
        let mut stored = vec![0; tensor.bytes as usize];
        source.read_exact_at(tensor.offset, &mut stored).expect("a range of the table lies in the file");
        let elements = tensor.elements();
        if elements <= DECODE_LIMIT_ELEMENTS {
            let decoded = blocks::decode(tensor.dtype, &stored, &mut vec![0.0; elements]);
            assert!(matches!(decoded, Ok(()) | Err(blocks::BlockError::NotFloat { .. })), "{decoded:?}");
        }
    }
}
