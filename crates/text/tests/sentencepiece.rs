//! Vocabularies of the sentencepiece library, put into GGUF keys, give that library's ids and texts.

mod common;

use common::{from_folder, goldens, ids, json};
use goldcrest_format::gguf::{Array, Metadata, Value};
use goldcrest_text::{Piece, SpecialTokens, Tokenizer};

/// The fields of one protocol-buffer message: number, and bytes or integer.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (first, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(first & 0x7F) << shift;
            shift += 7;
            if first & 0x80 == 0 {
                return value;
            }
        }
    }
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Integer(varint(&mut bytes)),
            wire => {
                let len = match wire {
                    1 => 8,
                    5 => 4,
                    _ => varint(&mut bytes) as usize,
                };
                let (value, rest) = bytes.split_at(len);
                bytes = rest;
                Field::Bytes(value)
            }
        };
        all.push((key >> 3, field));
    }
    all
}

#[derive(Clone, Copy)]
enum Field<'a> {
    Integer(u64),
    Bytes(&'a [u8]),
}

/// The metadata that llama.cpp's converter would write for a tokenizer.model.
fn metadata(kind: &str, model: &str) -> Metadata {
    let bytes = std::fs::read(goldens().join("tokenizers").join(kind).join("tokenizer.model")).unwrap();
    let (mut texts, mut scores, mut types) = (Vec::new(), Vec::new(), Vec::new());
    let mut metadata = Metadata::default();
    let (mut prefix, mut collapse) = (true, true);
    for (number, field) in fields(&bytes) {
        let Field::Bytes(message) = field else { continue };
        let (mut text, mut score, mut kind) = (String::new(), 0.0, 1);
        for (inner, value) in fields(message) {
            match (number, inner, value) {
                (1, 1, Field::Bytes(b)) => text = String::from_utf8(b.to_vec()).unwrap(),
                (1, 2, Field::Bytes(b)) => score = f32::from_le_bytes(b.try_into().unwrap()),
                (1, 3, Field::Integer(n)) => kind = n as i32,
                (3, 2, Field::Bytes(b)) => {
                    metadata.set(
                        "tokenizer.ggml.precompiled_charsmap",
                        Value::Array(Array::U8(b.to_vec())),
                    );
                }
                (3, 3, Field::Integer(n)) => prefix = n != 0,
                (3, 4, Field::Integer(n)) => collapse = n != 0,
                _ => {}
            }
        }
        if number == 1 {
            texts.push(text);
            scores.push(score);
            types.push(kind);
        }
    }
    metadata.set("tokenizer.ggml.model", Value::Str(model.into()));
    metadata.set(
        "tokenizer.ggml.tokens",
        Value::Array(Array::Str(texts.iter().collect())),
    );
    metadata.set("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    metadata.set("tokenizer.ggml.unknown_token_id", Value::U32(0));
    metadata.set("tokenizer.ggml.bos_token_id", Value::U32(1));
    metadata.set("tokenizer.ggml.eos_token_id", Value::U32(2));
    metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(prefix));
    metadata.set("tokenizer.ggml.remove_extra_whitespaces", Value::Bool(collapse));
    metadata
}

/// Number of strings on which ids differ from the sentencepiece library's, which knows no control tokens in text.
fn differences(tokenizer: &Tokenizer, expected: &serde_json::Value) -> Vec<String> {
    let cases = expected["encode"].as_array().unwrap();
    let wrong = cases.iter().filter(|case| {
        let text = case["text"].as_str().unwrap();
        tokenizer.encode_pieces(&[Piece::Content(text)]).unwrap() != ids(&case["ids"])
    });
    wrong.map(|case| case["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn bpe_by_scores_equals_sentencepiece() {
    let tokenizer = Tokenizer::from_gguf(&metadata("sentencepiece_bpe", "llama")).unwrap();
    let expected = json(&goldens().join("tokenizers/sentencepiece_bpe/expected_sentencepiece.json"));
    assert_eq!(differences(&tokenizer, &expected), Vec::<String>::new());
    for list in ["encode", "decode"] {
        for case in expected[list].as_array().unwrap() {
            let decoded = tokenizer.decode(&ids(&case["ids"]), SpecialTokens::Skip).unwrap();
            assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{case}");
        }
    }
}

#[test]
fn unigram_equals_tokenizer_json() {
    for kind in ["sentencepiece_unigram", "sentencepiece_unigram_bytes"] {
        let folder = goldens().join("tokenizers").join(kind);
        let from_gguf = Tokenizer::from_gguf(&metadata(kind, "t5")).unwrap();
        let from_hf = from_folder(&folder);
        for case in json(&folder.join("expected.json"))["encode"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(from_gguf.encode(text).unwrap(), ids(&case["ids"]), "{kind}: {text:?}");
            assert_eq!(from_gguf.encode(text).unwrap(), from_hf.encode(text).unwrap());
        }
    }
}

#[test]
fn unigram_decoding_equals_sentencepiece() {
    for kind in ["sentencepiece_unigram", "sentencepiece_unigram_bytes"] {
        let tokenizer = Tokenizer::from_gguf(&metadata(kind, "t5")).unwrap();
        let expected = json(
            &goldens()
                .join("tokenizers")
                .join(kind)
                .join("expected_sentencepiece.json"),
        );
        println!(
            "{kind}: ids differ from sentencepiece on {:?}",
            differences(&tokenizer, &expected)
        );
        for list in ["encode", "decode"] {
            for case in expected[list].as_array().unwrap() {
                let decoded = tokenizer.decode(&ids(&case["ids"]), SpecialTokens::Skip).unwrap();
                assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{kind}: {case}");
            }
        }
    }
}
