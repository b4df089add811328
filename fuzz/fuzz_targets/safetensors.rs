//! Any bytes as a safetensors file, and as an index of shards.
#![no_main]

use std::collections::HashSet;
use std::path::Path;

use goldcrest_format::{Source, hf, safetensors};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let source = Source::memory("input", bytes.to_vec());
    match safetensors::read(&source, 0) {
        Ok(tensors) => {
            let mut names = HashSet::new();
            for tensor in &tensors {
                assert!(names.insert(&tensor.name));
                assert_eq!(tensor.dtype.bytes(tensor.elements() as u64), Ok(tensor.bytes));
                let mut stored = vec![0; tensor.bytes as usize];
                source.read_exact_at(tensor.offset, &mut stored).expect("a range of the header lies in the file");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(index) = hf::parse_object(Path::new("index"), bytes)
        && let Ok(places) = safetensors::weight_map(&index)
    {
        for (_, shard) in places {
            let path = Path::new("folder").join(shard);
            assert_eq!(path.parent(), Some(Path::new("folder")), "{shard:?} leaves the folder");
        }
    }
});
