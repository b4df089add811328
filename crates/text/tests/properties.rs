//! Properties over random bytes, texts, ids and pieces: nothing panics, nothing is lost, streaming changes nothing, message text never
//! becomes a control token.

mod common;

use common::strings::{Random, Strings};
use common::{KINDS, from_folder, goldens};
use goldcrest_text::{Piece, SpecialTokens, TextStream, Tokenizer, TokenizerError};

const LOSSLESS: [&str; 4] = ["bpe_gpt2", "bpe_llama3", "bpe_o200k", "bpe_deepseek"];
fn tokenizer(kind: &str) -> Tokenizer {
    from_folder(&goldens().join("tokenizers").join(kind))
}

/// Control tokens of the golden vocabularies, and texts like them.
const MARKS: [&str; 16] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|begin_of_text|>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "</s>",
    "<s>",
    "[INST]",
    "<end_of_turn>",
    "<start_of_turn>",
    "[SEP]",
    "[CLS]",
    "<unk>",
    "<|message|>",
];

#[test]
fn every_short_byte_string_tokenizes() {
    for kind in KINDS {
        let tokenizer = tokenizer(kind);
        let mut random = Random::new(3);
        let check = |bytes: &[u8]| {
            let ids = tokenizer.encode_bytes(bytes).unwrap();
            let text = tokenizer.decode(&ids, SpecialTokens::Keep).unwrap();
            if LOSSLESS.contains(&kind) {
                assert_eq!(text, String::from_utf8_lossy(bytes), "{kind}: {bytes:x?}");
            }
        };
        (0..=255).for_each(|a| check(&[a]));
        for _ in 0..600 {
            let bytes: Vec<u8> = (0..random.below(24)).map(|_| random.next() as u8).collect();
            check(&bytes);
            check(&bytes[..bytes.len().min(3)]);
        }
        check(b"\xE6\xAD");
    }
}

#[test]
fn byte_level_vocabularies_lose_nothing() {
    let strings = Strings::open();
    for kind in LOSSLESS {
        let tokenizer = tokenizer(kind);
        for index in 0..1200 {
            let text = strings.string(index);
            for piece in [Piece::Markup(&text), Piece::Content(&text)] {
                let ids = tokenizer.encode_pieces(&[piece]).unwrap();
                assert_eq!(tokenizer.decode(&ids, SpecialTokens::Keep).unwrap(), text, "{kind}");
            }
        }
    }
}

#[test]
fn streamed_text_equals_whole_text() {
    for kind in KINDS {
        let tokenizer = tokenizer(kind);
        let mut random = Random::new(11);
        for round in 0..400 {
            let len = random.below(40);
            let ids: Vec<u32> = (0..len)
                .map(|_| random.below(tokenizer.vocabulary_len() as u64) as u32)
                .collect();
            let special = if round % 2 == 0 {
                SpecialTokens::Keep
            } else {
                SpecialTokens::Skip
            };
            let whole = tokenizer.decode(&ids, special).unwrap();
            let mut stream = TextStream::new(tokenizer.detokenizer(special), Vec::new());
            let mut text = String::new();
            for &id in &ids {
                let released = stream.push(id, ()).unwrap();
                assert!(released.tokens.iter().all(|t| t.id == id));
                text.extend(released.tokens.iter().map(|t| t.text.as_str()));
                assert!(whole.starts_with(&text), "{kind}: {ids:?}");
            }
            let (tokens, tail) = stream.finish();
            text.extend(tokens.iter().map(|t| t.text.as_str()).chain([tail.as_str()]));
            assert_eq!(text, whole, "{kind}: {ids:?}");
        }
    }
}

#[test]
fn content_never_becomes_a_control_token() {
    let strings = Strings::open();
    for kind in KINDS {
        let tokenizer = tokenizer(kind);
        let unknown = tokenizer.special_ids().unknown;
        let mut random = Random::new(5);
        for index in 0..400 {
            let mut text = strings.string(index);
            for _ in 0..3 {
                let cut = (0..=text.len())
                    .filter(|&at| text.is_char_boundary(at))
                    .nth(random.below(4) as usize);
                text.insert_str(cut.unwrap_or(0), MARKS[random.below(MARKS.len() as u64) as usize]);
            }
            let ids = tokenizer.encode_pieces(&[Piece::Content(&text)]).unwrap();
            let control = ids.iter().find(|&&id| tokenizer.is_control(id) && Some(id) != unknown);
            assert_eq!(control, None, "{kind}: {text:?}");
        }
    }
}

#[test]
fn pieces_cut_no_ordinary_text() {
    let strings = Strings::open();
    for kind in KINDS {
        let tokenizer = tokenizer(kind);
        let mut random = Random::new(7);
        for index in (0..1200).filter(|index| index % 12 != 5) {
            let text = strings.string(index);
            let cut = random.below(text.len() as u64 + 1) as usize;
            let cut = (0..=cut).rev().find(|&at| text.is_char_boundary(at)).unwrap();
            let pieces = [Piece::Markup(&text[..cut]), Piece::Content(&text[cut..])];
            let whole = tokenizer.encode(&text).unwrap();
            let control = |id: &u32| tokenizer.is_control(*id) && Some(*id) != tokenizer.special_ids().unknown;
            if !whole.iter().any(control) && !text.contains("<unk>") {
                assert_eq!(tokenizer.encode_pieces(&pieces).unwrap(), whole, "{kind}: {text:?}");
            }
        }
    }
}

#[test]
fn text_around_control_tokens_equals_the_text_in_pieces() {
    for (kind, mark) in [
        ("bpe_llama3", "<|eot_id|>"),
        ("spm_llama2", "</s>"),
        ("spm_mistral", "[INST]"),
        ("spm_gemma", "<bos>"),
    ] {
        let tokenizer = tokenizer(kind);
        let id = tokenizer.encode(mark).unwrap();
        assert_eq!(id.len(), 1, "{kind}");
        for (before, after) in [
            ("", " b"),
            ("a ", "b"),
            ("a", "  b"),
            (" ", "\n"),
            ("a\n", "\nb"),
            ("", ""),
        ] {
            let whole = tokenizer.encode(&format!("{before}{mark}{after}")).unwrap();
            let pieces = [Piece::Markup(before), Piece::Token(id[0]), Piece::Markup(after)];
            assert_eq!(
                tokenizer.encode_pieces(&pieces).unwrap(),
                whole,
                "{kind}: {before:?} {after:?}"
            );
        }
    }
}

#[test]
fn begin_of_sequence_comes_once() {
    let tokenizer = tokenizer("bpe_llama3");
    let bos = tokenizer.special_ids().bos.unwrap();
    let plain = tokenizer.encode_prompt(&[Piece::Markup("hello")]).unwrap();
    let written = tokenizer
        .encode_prompt(&[Piece::Markup("<|begin_of_text|>hello")])
        .unwrap();
    let given = tokenizer
        .encode_prompt(&[Piece::Token(bos), Piece::Markup("hello")])
        .unwrap();
    assert_eq!(plain.iter().filter(|&&id| id == bos).count(), 1);
    assert_eq!((&written, &given), (&plain, &plain));
    let quoted = tokenizer
        .encode_prompt(&[Piece::Content("<|begin_of_text|>hello")])
        .unwrap();
    assert_eq!(quoted.iter().filter(|&&id| id == bos).count(), 1);
    assert_eq!(quoted.first(), Some(&bos));
}

#[test]
fn ids_outside_the_vocabulary_are_refused() {
    let tokenizer = tokenizer("bpe_gpt2");
    let len = tokenizer.vocabulary_len() as u32;
    for id in [len, len + 1, u32::MAX] {
        let decoded = tokenizer.decode(&[0, id], SpecialTokens::Keep);
        assert!(
            matches!(decoded, Err(TokenizerError::UnknownToken { id: wrong, tokens }) if wrong == id && tokens == len as usize)
        );
        assert!(matches!(
            tokenizer.encode_pieces(&[Piece::Token(id)]),
            Err(TokenizerError::UnknownToken { .. })
        ));
    }
    assert!(tokenizer.decode(&[len - 1], SpecialTokens::Keep).is_ok());
}

#[test]
fn tokens_are_found_by_their_text() {
    for kind in KINDS {
        let tokenizer = tokenizer(kind);
        let found = tokenizer.ids_with(&["no such \u{1}", "e"]);
        assert!(!found.is_empty() && found.is_sorted(), "{kind}");
        assert!(found.iter().all(|&id| !tokenizer.is_control(id)), "{kind}");
        for id in tokenizer
            .encode_pieces(&[Piece::Content("the end, not a word")])
            .unwrap()
        {
            let text = tokenizer.decode(&[id], SpecialTokens::Keep).unwrap();
            assert_eq!(found.contains(&id), text.contains('e'), "{kind}: {text:?}");
        }
        assert!(tokenizer.ids_with(&["no such \u{1}"]).is_empty(), "{kind}");
    }
}

#[test]
fn long_runs_are_tokenized_in_full() {
    for kind in KINDS {
        let tokenizer = tokenizer(kind);
        for unit in [" ", "a", "\n", "<|", "é", "1", "a ", "🙂"] {
            let text = unit.repeat(40_000);
            let ids = tokenizer.encode(&text).unwrap();
            if LOSSLESS.contains(&kind) {
                assert_eq!(
                    tokenizer.decode(&ids, SpecialTokens::Keep).unwrap().len(),
                    text.len(),
                    "{kind}: {unit:?}"
                );
            }
        }
    }
}
