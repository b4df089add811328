//! Opens the input as tokenizer.json and, where that works, encodes and decodes a text with it.
#![no_main]

use goldcrest_text::{HfFiles, SpecialTokens, Tokenizer};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

// The tokenizer library's own panics are caught and become errors; the fuzzer's hook would end the process before that.
fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |input: &[u8]| {
    let files = HfFiles { tokenizer: input, tokenizer_config: &Value::Null, generation_config: &Value::Null };
    let Ok(tokenizer) = Tokenizer::from_hf(&files) else { return };
    let Ok(ids) = tokenizer.encode_bytes(b"Hello <|im_end|> \xE6\xAD 12\n\n  w\xC3\xB6rld</s>") else { return };
    let text = tokenizer.decode(&ids, SpecialTokens::Keep).expect("the tokenizer's own ids are in its vocabulary");
    let mut stream = tokenizer.detokenizer(SpecialTokens::Keep);
    let mut streamed = String::new();
    for id in ids {
        streamed.push_str(&stream.push(id).expect("the tokenizer's own ids are in its vocabulary"));
    }
    assert_eq!(streamed + &stream.finish(), text);
});
