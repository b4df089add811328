//! Streams ids through the golden tokenizers: streamed text equals whole text, and bytes come back from byte-level vocabularies.
#![no_main]

use std::sync::LazyLock;

use goldcrest_text::{HfFiles, SpecialTokens, Tokenizer};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

macro_rules! golden {
    ($kind:literal) => {
        include_bytes!(concat!("../../tests/goldens/tokenizers/", $kind, "/tokenizer.json"))
    };
}

static TOKENIZERS: LazyLock<[Tokenizer; 4]> = LazyLock::new(|| {
    let open = |json: &[u8]| {
        let files = HfFiles { tokenizer: json, tokenizer_config: &Value::Null, generation_config: &Value::Null };
        Tokenizer::from_hf(&files).expect("golden tokenizers open")
    };
    [
        open(golden!("bpe_gpt2")),
        open(golden!("spm_llama2")),
        open(golden!("sentencepiece_unigram_bytes")),
        open(golden!("wordpiece_bert")),
    ]
});

fuzz_target!(|input: (u8, Vec<u16>, Vec<u8>)| {
    let (choice, ids, bytes) = input;
    let tokenizer = &TOKENIZERS[usize::from(choice & 3)];
    let special = if choice & 4 == 0 { SpecialTokens::Keep } else { SpecialTokens::Skip };
    let ids: Vec<u32> = ids.iter().map(|&id| u32::from(id) % tokenizer.vocabulary_len() as u32).collect();
    let mut stream = tokenizer.detokenizer(special);
    let mut streamed = String::new();
    for &id in &ids {
        streamed.push_str(&stream.push(id).expect("the id is in the vocabulary"));
    }
    assert_eq!(streamed + &stream.finish(), tokenizer.decode(&ids, special).expect("the ids are in the vocabulary"));
    let spelled = TOKENIZERS[0].encode_bytes(&bytes).expect("any bytes tokenize");
    let text = TOKENIZERS[0].decode(&spelled, SpecialTokens::Keep).expect("the tokenizer's own ids are in its vocabulary");
    assert_eq!(text, String::from_utf8_lossy(&bytes));
});
