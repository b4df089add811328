//! As `hostile`, for the JSON files of a model folder.

#[path = "hostile/bounds.rs"]
mod bounds;
#[path = "hostile/counting.rs"]
mod counting;
mod support;

use std::path::Path;

use bounds::{MEMORY_FLOOR_BYTES, bounded};
use counting::peak_bytes;
use goldcrest_format::hf;
use serde_json::json;
use support::TempFolder;

#[test]
fn json_files_are_bounded_and_typed() {
    let path = Path::new("config.json");
    let deep = format!(r#"{{"a":{}"#, "[".repeat(500_000));
    let wrong = ["", "[]", "7", "null", "{", r#"{"a":}"#, r#"{"a":1}x"#, deep.as_str()];
    for text in wrong {
        let error = bounded(text.len(), || hf::parse_object(path, text.as_bytes())).unwrap_err();
        assert!(error.to_string().contains("config.json"), "{error}");
    }
    let folder = TempFolder::new("json");
    let files = hf::Folder::new(folder.path());
    folder.write("config.json", "{}");
    // A sparse file: its length is refused before anything is read.
    let large = std::fs::File::create(folder.path().join("tokenizer.json")).unwrap();
    large.set_len(1 << 40).unwrap();
    let (result, peak) = peak_bytes(|| files.tokenizer());
    assert!(matches!(result, Err(hf::HfError::TooLarge { .. })) && peak < MEMORY_FLOOR_BYTES);
    std::fs::create_dir(folder.path().join("generation_config.json")).unwrap();
    assert!(matches!(files.generation_config(), Err(hf::HfError::Read { .. })));
    for name in ["../config.json", "/etc/hostname", "..", ".", "", "a/b", "a\\b", "a\0b"] {
        assert!(matches!(files.bytes(name), Err(hf::HfError::Name { .. })), "{name:?}");
    }
    folder.write("chat_template.jinja", [b'a', 0xFF]);
    assert!(matches!(files.templates(), Err(hf::HfError::Utf8 { offset: 1, .. })));
}

#[test]
fn numbers_that_are_not_finite_are_words_of_their_own() {
    let parse = |text: &str| {
        bounded(text.len(), || {
            hf::parse_object(Path::new("config.json"), text.as_bytes())
        })
    };
    let text = r#"{"a":[0.0,Infinity , -Infinity,NaN],"NaN":"Infinity, \"NaN\", \\","b":NaN}"#;
    let float = |word| json!({ "__float__": word });
    assert_eq!(
        serde_json::Value::from(parse(text).unwrap()),
        json!({
            "a": [0.0, float("Infinity"), float("-Infinity"), float("NaN")],
            "NaN": "Infinity, \"NaN\", \\",
            "b": float("NaN"),
        })
    );
    for (text, wrong) in [
        (r#"{"a":nan}"#, 7),
        (r#"{"a":Infinity1}"#, 6),
        (r#"{"a":- Infinity}"#, 7),
        (r#"{"a":+Infinity}"#, 6),
        (r#"{"a":1Infinity}"#, 7),
        (r#"{"a":NaN NaN}"#, 10),
        (r#"{NaN:1}"#, 2),
        (r#"{"a":NaN,"b":}"#, 14),
        (r#"{"a":NaN"#, 8),
        (r#"{"a":NaN,"b":"NaN"#, 17),
        (r#"{"a":NaN,"b":"\"#, 15),
        ("NaN", 3),
    ] {
        match parse(text) {
            Err(hf::HfError::Json { line: 1, column, .. }) => assert_eq!(column, wrong, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    let many = |words: usize| format!(r#"{{"a":[{}]}}"#, vec!["NaN"; words].join(","));
    assert_eq!(parse(&many(64)).unwrap()["a"][63], float("NaN"));
    for words in [65, 200_000] {
        assert!(
            matches!(parse(&many(words)), Err(hf::HfError::Json { line: 0, .. })),
            "{words}"
        );
    }
    for word in ["-", "NaNa", "\"", "\"\\"] {
        parse(&format!(r#"{{"a":{}"#, word.repeat(100_000))).unwrap_err();
    }
}
