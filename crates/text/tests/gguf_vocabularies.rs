//! Contradictory GGUF vocabularies are refused by name, and token types and defaults are respected.

mod common;

use common::{gguf_metadata, goldens, ids, json, repository_tests};
use goldcrest_format::gguf::{Array, Metadata, Value};
use goldcrest_text::{Piece, SpecialTokens, Tokenizer, TokenizerError};

fn strings(texts: &[&str]) -> Value {
    Value::Array(Array::Str(texts.iter().collect()))
}

/// A vocabulary of eight tokens.
fn small() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("tokenizer.ggml.model", Value::Str("gpt2".into()));
    metadata.set("tokenizer.ggml.pre", Value::Str("gpt-2".into()));
    metadata.set(
        "tokenizer.ggml.tokens",
        strings(&["a", "b", "ab", "Ġ", "<|end|>", "<think>", "[PAD6]", "aba"]),
    );
    metadata.set(
        "tokenizer.ggml.token_type",
        Value::Array(Array::I32(vec![1, 1, 1, 1, 3, 4, 5, 1])),
    );
    metadata.set("tokenizer.ggml.merges", strings(&["a b", "ab a"]));
    metadata
}

fn with(key: &str, value: Value) -> Result<Tokenizer, TokenizerError> {
    let mut metadata = small();
    metadata.set(key, value);
    Tokenizer::from_gguf(&metadata)
}

#[test]
fn token_types_are_respected() {
    let tokenizer = Tokenizer::from_gguf(&small()).unwrap();
    assert_eq!(tokenizer.encode("aba ab").unwrap(), [7, 3, 2]);
    assert_eq!(tokenizer.encode("a<|end|><think>b").unwrap(), [0, 4, 5, 1]);
    // User-defined tokens are found in content, control tokens are not; this vocabulary cannot spell them.
    assert_eq!(
        tokenizer.encode_pieces(&[Piece::Content("a<|end|><think>b")]).unwrap(),
        [0, 5, 1]
    );
    assert_eq!(
        tokenizer.decode(&[2, 4, 5, 6], SpecialTokens::Keep).unwrap(),
        "ab<|end|><think>"
    );
    assert_eq!(
        tokenizer.decode(&[2, 4, 5, 6], SpecialTokens::Skip).unwrap(),
        "ab<think>"
    );
    assert_eq!(tokenizer.end_ids(), [4]);
}

#[test]
fn unknown_algorithms_are_refused_by_name() {
    let model = with("tokenizer.ggml.model", Value::Str("rwkv".into())).unwrap_err();
    assert!(
        matches!(model, TokenizerError::UnknownModel { ref name } if name == "rwkv"),
        "{model}"
    );
    let pre = with("tokenizer.ggml.pre", Value::Str("afmoe".into())).unwrap_err();
    assert!(
        matches!(pre, TokenizerError::UnknownPreTokenizer { ref name } if name == "afmoe"),
        "{pre}"
    );
}

#[test]
fn special_ids_outside_the_vocabulary_are_refused() {
    for key in ["bos", "eos", "unknown", "padding", "eot", "eom"] {
        let key = format!("tokenizer.ggml.{key}_token_id");
        for id in [8, u32::MAX - 1] {
            let error = with(&key, Value::U32(id)).unwrap_err();
            let named = matches!(error, TokenizerError::SpecialOutOfRange { key: k, id: i, tokens: 8 } if k == key && i == i64::from(id));
            assert!(named, "{error}");
        }
        assert!(with(&key, Value::U32(7)).is_ok());
        assert!(with(&key, Value::I32(-1)).is_ok());
        assert!(matches!(
            with(&key, Value::Str("x".into())),
            Err(TokenizerError::Metadata(_))
        ));
    }
}

#[test]
fn contradictory_arrays_are_refused() {
    let types = with("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1; 7])));
    assert!(matches!(
        types,
        Err(TokenizerError::LengthMismatch {
            found: 7,
            tokens: 8,
            ..
        })
    ));
    let kind = with(
        "tokenizer.ggml.token_type",
        Value::Array(Array::I32(vec![1, 1, 9, 1, 1, 1, 1, 1])),
    );
    assert!(matches!(kind, Err(TokenizerError::BadTokenType { id: 2, kind: 9 })));
    for merge in ["ab", "", " ", "a", "a c", "b b", "a  b", "é "] {
        let merges = with("tokenizer.ggml.merges", strings(&["a b", merge]));
        assert!(
            matches!(merges, Err(TokenizerError::BadMerge { index: 1, .. })),
            "{merge:?}"
        );
    }
    let mut scored = small();
    scored.set("tokenizer.ggml.model", Value::Str("llama".into()));
    assert!(matches!(
        Tokenizer::from_gguf(&scored),
        Err(TokenizerError::Metadata(_))
    ));
    scored.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; 3])));
    assert!(matches!(
        Tokenizer::from_gguf(&scored),
        Err(TokenizerError::LengthMismatch { found: 3, .. })
    ));
    scored.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![f32::NAN; 8])));
    assert!(matches!(
        Tokenizer::from_gguf(&scored),
        Err(TokenizerError::BadScore { id: 0 })
    ));
    assert!(matches!(
        Tokenizer::from_gguf(&Metadata::default()),
        Err(TokenizerError::Metadata(_))
    ));
}

#[test]
fn user_defined_runs_of_spaces_are_spelled_with_marks() {
    let mut metadata = small();
    metadata.set("tokenizer.ggml.model", Value::Str("llama".into()));
    metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    metadata.set(
        "tokenizer.ggml.tokens",
        strings(&["<unk>", "▁", "x", "▁x", "  ", "   ", "</s>", "y"]),
    );
    metadata.set(
        "tokenizer.ggml.token_type",
        Value::Array(Array::I32(vec![2, 1, 1, 1, 4, 4, 3, 1])),
    );
    metadata.set(
        "tokenizer.ggml.scores",
        Value::Array(Array::F32(vec![0.0, -3.0, -2.0, -1.0, -1000.0, -1000.0, 0.0, -4.0])),
    );
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(tokenizer.encode("x   x x").unwrap(), [2, 5, 2, 3]);
    assert_eq!(tokenizer.encode("    x").unwrap(), [5, 3]);
    assert_eq!(tokenizer.encode("éx").unwrap(), [0, 2]);
    assert_eq!(tokenizer.decode(&[2, 5, 2, 6], SpecialTokens::Skip).unwrap(), "x   x");
}

/// BERT's vocabulary as the converter writes it: `▁` before word starts, no `##` before continuations.
#[test]
fn wordpiece_equals_tokenizer_json() {
    let folder = goldens().join("tokenizers/wordpiece_bert");
    let file = json(&folder.join("tokenizer.json"));
    let mut vocabulary: Vec<(u64, String, i32)> = Vec::new();
    for (text, id) in file["model"]["vocab"].as_object().unwrap() {
        let special = text.starts_with('[') && text.len() > 1;
        let spelled = match text.strip_prefix("##") {
            Some(rest) => rest.to_owned(),
            None if special => text.clone(),
            None => format!("▁{text}"),
        };
        vocabulary.push((id.as_u64().unwrap(), spelled, if special { 3 } else { 1 }));
    }
    vocabulary.sort();
    let mut metadata = Metadata::default();
    metadata.set("tokenizer.ggml.model", Value::Str("bert".into()));
    metadata.set(
        "tokenizer.ggml.tokens",
        Value::Array(Array::Str(vocabulary.iter().map(|v| &v.1).collect())),
    );
    metadata.set(
        "tokenizer.ggml.token_type",
        Value::Array(Array::I32(vocabulary.iter().map(|v| v.2).collect())),
    );
    for (key, id) in [("unknown", 1), ("cls", 2), ("seperator", 3)] {
        metadata.set(&format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
    }
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    for case in json(&folder.join("expected.json"))["encode"].as_array().unwrap() {
        let got = tokenizer.encode(case["text"].as_str().unwrap()).unwrap();
        assert_eq!(got, ids(&case["ids"]), "{case}");
        assert_eq!(
            tokenizer.with_special_tokens(&got),
            ids(&case["ids_with_special_tokens"])
        );
        assert_eq!(
            tokenizer.decode(&got, SpecialTokens::Keep).unwrap(),
            case["decoded"].as_str().unwrap()
        );
    }
}

#[test]
fn stub_vocabularies_of_the_goldens_open() {
    for entry in std::fs::read_dir(repository_tests().join("goldens-gguf")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "gguf") {
            let tokenizer =
                Tokenizer::from_gguf(&gguf_metadata(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let ids = tokenizer.encode("Größe 你好").unwrap();
            let decoded = tokenizer.decode(&ids, SpecialTokens::Skip).unwrap();
            assert_eq!(decoded, "Größe 你好", "{}", path.display());
        }
    }
}
