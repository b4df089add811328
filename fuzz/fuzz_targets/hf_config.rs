//! Any bytes as a JSON file of a model folder: settings that survive writing and reading, and chat templates.
#![no_main]

use std::path::Path;

use goldcrest_format::hf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("config.json");
    match hf::parse_object(path, bytes) {
        Ok(object) => {
            let written = serde_json::to_vec(&object).expect("a parsed object can be written");
            let again = hf::parse_object(path, &written).expect("a written object can be read");
            assert_eq!(object.len(), again.len());
            for value in object.values() {
                for template in hf::templates(value).into_iter().flatten() {
                    assert!(template.text.len() <= bytes.len());
                }
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
