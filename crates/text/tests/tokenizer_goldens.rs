//! Token ids and decoded texts of every tokenizer kind equal the reference libraries'.

mod common;

use common::{KINDS, from_folder, gguf_metadata, goldens, ids, json, repository_tests};
use goldcrest_text::{SpecialTokens, Tokenizer};

/// Cases whose texts come with a tokenizer, and whose GGUF file carries the same vocabulary.
const CASES: [&str; 3] = ["llama2", "llama3", "qwen3"];

#[test]
fn encoding_equals_the_reference() {
    for kind in KINDS {
        let folder = goldens().join("tokenizers").join(kind);
        let tokenizer = from_folder(&folder);
        let expected = json(&folder.join("expected.json"));
        assert_eq!(
            tokenizer.vocabulary_len() as u64,
            expected["vocab_size_with_added"].as_u64().unwrap()
        );
        for case in expected["encode"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let got = tokenizer.encode(text).unwrap();
            assert_eq!(got, ids(&case["ids"]), "{kind}: {text:?}");
            assert_eq!(
                tokenizer.with_special_tokens(&got),
                ids(&case["ids_with_special_tokens"]),
                "{kind}: {text:?}"
            );
        }
    }
}

#[test]
fn tokens_are_spelled_like_the_reference() {
    for kind in KINDS {
        let folder = goldens().join("tokenizers").join(kind);
        let tokenizer = from_folder(&folder);
        for case in json(&folder.join("expected.json"))["encode"].as_array().unwrap() {
            for (id, spelling) in ids(&case["ids"]).into_iter().zip(case["tokens"].as_array().unwrap()) {
                // The unigram model of the reference reports an unknown token with the text it stands for.
                if tokenizer.special_ids().unknown != Some(id) {
                    assert_eq!(tokenizer.token_text(id), spelling.as_str(), "{kind}: {}", case["text"]);
                }
            }
        }
    }
}

#[test]
fn decoding_equals_the_reference() {
    for kind in KINDS {
        let folder = goldens().join("tokenizers").join(kind);
        let tokenizer = from_folder(&folder);
        let expected = json(&folder.join("expected.json"));
        let check = |ids: &[u32], special, text: &serde_json::Value| {
            assert_eq!(
                tokenizer.decode(ids, special).unwrap(),
                text.as_str().unwrap(),
                "{kind}: {ids:?}"
            );
        };
        for case in expected["encode"].as_array().unwrap() {
            check(&ids(&case["ids"]), SpecialTokens::Keep, &case["decoded"]);
            check(
                &ids(&case["ids_with_special_tokens"]),
                SpecialTokens::Skip,
                &case["decoded_skip_special"],
            );
        }
        for case in expected["decode"].as_array().unwrap() {
            check(&ids(&case["ids"]), SpecialTokens::Keep, &case["decoded"]);
            check(&ids(&case["ids"]), SpecialTokens::Skip, &case["decoded_skip_special"]);
        }
    }
}

#[test]
fn checkpoints_encode_their_prompts() {
    for case in CASES {
        let folder = goldens().join(case);
        let tokenizer = from_folder(&folder);
        for prompt in json(&folder.join("text.json"))["prompts"].as_array().unwrap() {
            let text = prompt["text"].as_str().unwrap();
            let pieces = [goldcrest_text::Piece::Markup(text)];
            assert_eq!(
                tokenizer.encode_prompt(&pieces).unwrap(),
                ids(&prompt["ids"]),
                "{case}: {text:?}"
            );
            let greedy = tokenizer
                .decode(&ids(&prompt["greedy_ids"]), SpecialTokens::Keep)
                .unwrap();
            assert_eq!(greedy, prompt["greedy_text"].as_str().unwrap(), "{case}: {text:?}");
        }
    }
}

#[test]
fn gguf_vocabularies_give_the_ids_of_tokenizer_json() {
    for case in CASES {
        let from_hf = from_folder(&goldens().join(case));
        let metadata = gguf_metadata(&repository_tests().join("goldens-gguf").join(format!("{case}.gguf")));
        let from_gguf = Tokenizer::from_gguf(&metadata).unwrap();
        let texts = KINDS.iter().flat_map(|kind| {
            let expected = json(&goldens().join("tokenizers").join(kind).join("expected.json"));
            expected["encode"].as_array().unwrap().clone()
        });
        let prompts = json(&goldens().join(case).join("text.json"))["prompts"]
            .as_array()
            .unwrap()
            .clone();
        for entry in texts.chain(prompts) {
            let text = entry["text"].as_str().unwrap();
            let ids = from_hf.encode(text).unwrap();
            assert_eq!(from_gguf.encode(text).unwrap(), ids, "{case}: {text:?}");
            assert_eq!(from_gguf.with_special_tokens(&ids), from_hf.with_special_tokens(&ids));
            let decoded = from_hf.decode(&ids, SpecialTokens::Skip).unwrap();
            assert_eq!(
                from_gguf.decode(&ids, SpecialTokens::Skip).unwrap(),
                decoded,
                "{case}: {text:?}"
            );
        }
    }
}
