//! The crate `tokenizers`, wrapped: normalisation, pre-tokenisation and the model of one vocabulary. Cutting added tokens out of
//! the text, special tokens around it and decoding are ours (`added`, `mod`, `detokenize`).

use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizer::Range as Span;
use tokenizers::normalizers::{NFC, Precompiled, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::{Model, Normalizer, PostProcessor, PreTokenizer};
use tokenizers::{
    Encoding, ModelWrapper, NormalizedString, NormalizerWrapper, PreTokenizedString, PreTokenizerWrapper,
    SplitDelimiterBehavior, Token, Tokenizer as Library,
};

use super::added::{AddedToken, Found, Matcher};
use super::error::TokenizerError;

/// Token texts with their ids.
pub(crate) type Words = Vocab;

/// A text algorithm of the library, without its added tokens.
pub(crate) struct Pipeline {
    library: Library,
    /// Control tokens by id, to notice where the model itself spells one.
    control: HashMap<u32, String>,
}

/// What a tokenizer.json says besides the text algorithm.
pub(crate) struct FileParts {
    pub pipeline: Pipeline,
    pub added: Vec<AddedToken>,
    /// Token texts by id; ids without a token are `None`.
    pub texts: Vec<Option<String>>,
    /// Ids the post-processor puts before and after a text.
    pub around: (Vec<u32>, Vec<u32>),
    /// The `decoder` field.
    pub decoder: serde_json::Value,
}

/// How texts are prepared for a byte-level BPE vocabulary.
pub(crate) struct ByteLevelRules<'a> {
    /// Compose characters first (Unicode NFC).
    pub nfc: bool,
    /// Patterns that isolate what they match, applied in order.
    pub splits: &'a [&'a str],
    /// A word that is a token as it stands is not merged step by step.
    pub ignore_merges: bool,
}

impl Pipeline {
    fn new(library: Library) -> Self {
        Pipeline {
            library,
            control: HashMap::new(),
        }
    }

    /// Tells which tokens message content must not become.
    pub fn set_control(&mut self, tokens: &[AddedToken]) {
        self.control = tokens
            .iter()
            .filter(|t| t.control)
            .map(|t| (t.id, t.content.clone()))
            .collect();
    }

    /// Reads tokenizer.json.
    pub fn from_json(json: &[u8]) -> Result<FileParts, TokenizerError> {
        let bad = |message: String| TokenizerError::BadFile {
            file: "tokenizer.json",
            message,
        };
        let library = guarded(|| Library::from_bytes(json)).map_err(bad)?;
        if let ModelWrapper::BPE(bpe) = library.get_model()
            && bpe.dropout.is_some_and(|p| p != 0.0)
        {
            return Err(TokenizerError::Unsupported {
                feature: "BPE dropout".into(),
            });
        }
        let added = added_tokens(&library)?;
        let texts = token_texts(&library)?;
        let around = special_ids_around(&library).map_err(bad)?;
        if let Some(&id) = around.0.iter().chain(&around.1).find(|&&id| id as usize >= texts.len()) {
            return Err(TokenizerError::SpecialOutOfRange {
                key: "post_processor",
                id: id.into(),
                tokens: texts.len(),
            });
        }
        let decoder = serde_json::to_value(library.get_decoder()).map_err(|e| bad(e.to_string()))?;
        Ok(FileParts {
            pipeline: Pipeline::new(library),
            added,
            texts,
            around,
            decoder,
        })
    }

    /// Byte-level BPE: `merges` are pairs of token texts by falling priority, all of them known.
    pub fn byte_level_bpe(
        vocabulary: Words,
        merges: Vec<(String, String)>,
        rules: &ByteLevelRules<'_>,
    ) -> Result<Self, TokenizerError> {
        let build = || -> tokenizers::Result<Library> {
            let model = BPE::builder()
                .vocab_and_merges(vocabulary, merges)
                .ignore_merges(rules.ignore_merges)
                .build()?;
            let mut library = Library::new(model);
            if rules.nfc {
                library.with_normalizer(Some(NFC))?;
            }
            let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
            for pattern in rules.splits {
                steps.push(
                    Split::new(
                        SplitPattern::Regex((*pattern).into()),
                        SplitDelimiterBehavior::Isolated,
                        false,
                    )?
                    .into(),
                );
            }
            steps.push(ByteLevel::new(false, false, false).into());
            library.with_pre_tokenizer(Some(PreTokenizers::new(steps)));
            Ok(library)
        };
        guarded(build)
            .map(Pipeline::new)
            .map_err(|message| TokenizerError::Library { message })
    }

    /// Unigram: `pieces` holds (text, log probability) by id; white space is `▁`, put before every text.
    pub fn unigram(
        pieces: Vec<(String, f64)>,
        unknown: Option<usize>,
        rules: &UnigramRules<'_>,
    ) -> Result<Self, TokenizerError> {
        let build = || -> tokenizers::Result<Library> {
            let mut library = Library::new(Unigram::from(pieces, unknown, rules.byte_fallback)?);
            let mut steps: Vec<NormalizerWrapper> = Vec::new();
            if !rules.charsmap.is_empty() {
                steps.push(Precompiled::from(rules.charsmap)?.into());
            }
            if rules.remove_extra_whitespaces {
                steps.push(
                    Replace::new(
                        tokenizers::normalizers::replace::ReplacePattern::Regex(" {2,}".into()),
                        " ",
                    )?
                    .into(),
                );
            }
            library.with_normalizer(Some(Normalizers::new(steps)))?;
            let prepend = if rules.add_space_prefix {
                PrependScheme::Always
            } else {
                PrependScheme::Never
            };
            library.with_pre_tokenizer(Some(Metaspace::new('▁', prepend, true)));
            Ok(library)
        };
        guarded(build)
            .map(Pipeline::new)
            .map_err(|message| TokenizerError::Library { message })
    }

    /// WordPiece with BERT's word splitting: continuations start with `##`.
    pub fn wordpiece(vocabulary: Words, unknown: String) -> Result<Self, TokenizerError> {
        let build = || -> tokenizers::Result<Library> {
            let mut library = Library::new(WordPiece::builder().vocab(vocabulary).unk_token(unknown).build()?);
            library.with_normalizer(Some(tokenizers::normalizers::BertNormalizer::default()))?;
            library.with_pre_tokenizer(Some(BertPreTokenizer));
            Ok(library)
        };
        guarded(build)
            .map(Pipeline::new)
            .map_err(|message| TokenizerError::Library { message })
    }

    /// `text` as the normaliser changes it: the form in which a token with `normalized` is searched.
    pub fn normalized(&self, text: &str) -> String {
        let mut string = NormalizedString::from(text);
        match self.library.get_normalizer().map(|n| n.normalize(&mut string)) {
            Some(Err(_)) => text.into(),
            Some(Ok(())) | None => string.get().into(),
        }
    }

    /// Ids of `text`, in which `cuts` (ascending, disjoint byte ranges) are already decided. `late` holds the added tokens to search
    /// in normalised text; `control_allowed` judges byte ranges of `text`.
    pub fn encode(
        &self,
        text: &str,
        cuts: &[Found],
        late: &Matcher,
        control_allowed: &dyn Fn(&Range<usize>) -> bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let run = || -> tokenizers::Result<Vec<u32>> {
            let mut string = PreTokenizedString::from(text);
            string.split(|_, whole| Ok(cut(&whole, cuts)))?;
            string.split(|_, mut part| {
                if let Some(normalizer) = self.library.get_normalizer() {
                    normalizer.normalize(&mut part)?;
                }
                let base = part.offsets_original().0;
                let allowed = |range: &Range<usize>| {
                    let original = part.convert_offsets(Span::Normalized(range.clone()));
                    original.is_some_and(|r| control_allowed(&(r.start + base..r.end + base)))
                };
                let found = late.find(part.get(), &allowed);
                Ok(cut(&part, &found))
            })?;
            if let Some(pre_tokenizer) = self.library.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut string)?;
            }
            string.tokenize(|word| {
                let (start, end) = word.offsets_original();
                self.word(word.get(), control_allowed(&(start..end)))
            })?;
            Ok(string
                .into_encoding(None, 0, tokenizers::OffsetType::None)?
                .get_ids()
                .to_vec())
        };
        guarded(run).map_err(|message| TokenizerError::Library { message })
    }
    /// Tokens of a word. Some models know the text of control tokens themselves; unless that is allowed, such a word is spelled.
    fn word(&self, word: &str, control_allowed: bool) -> tokenizers::Result<Vec<Token>> {
        let model = self.library.get_model();
        let tokens = model.tokenize(word)?;
        let is_control = |token: &Token| {
            self.control
                .get(&token.id)
                .is_some_and(|content| word.contains(content.as_str()))
        };
        if control_allowed || !tokens.iter().any(is_control) {
            return Ok(tokens);
        }
        let mut spelled = Vec::new();
        for (start, c) in word.char_indices() {
            spelled.extend(model.tokenize(&word[start..start + c.len_utf8()])?);
        }
        Ok(spelled)
    }
}

/// How texts are prepared for a unigram vocabulary.
pub(crate) struct UnigramRules<'a> {
    /// Characters without a piece become byte pieces.
    pub byte_fallback: bool,
    /// SentencePiece's compiled normalisation table; empty for none.
    pub charsmap: &'a [u8],
    /// Runs of spaces become one.
    pub remove_extra_whitespaces: bool,
    /// `▁` is put before a text.
    pub add_space_prefix: bool,
}

/// Runs library code: its errors and its panics become a message, for a hostile file must not end the process.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("the tokenizer library failed on this input".into()),
    }
}

/// `whole` in pieces: the found tokens, and what lies between them.
fn cut(whole: &NormalizedString, found: &[Found]) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
    let mut parts = Vec::with_capacity(2 * found.len() + 1);
    let mut done = 0;
    for token in found {
        parts.extend(
            whole
                .slice(Span::Normalized(done..token.range.start))
                .map(|s| (s, None)),
        );
        let value = Token::new(token.id, String::new(), (0, 0));
        parts.extend(
            whole
                .slice(Span::Normalized(token.range.clone()))
                .map(|s| (s, Some(vec![value]))),
        );
        done = token.range.end;
    }
    parts.extend(whole.slice(Span::Normalized(done..whole.len())).map(|s| (s, None)));
    parts
}

fn added_tokens(library: &Library) -> Result<Vec<AddedToken>, TokenizerError> {
    let mut tokens = Vec::new();
    for (&id, token) in library.get_added_vocabulary().get_added_tokens_decoder() {
        if token.single_word {
            return Err(TokenizerError::Unsupported {
                feature: format!("single_word of the added token `{}`", token.content),
            });
        }
        tokens.push(AddedToken {
            id,
            content: token.content.clone(),
            special: token.special,
            control: token.special || super::looks_like_control(&token.content),
            normalized: token.normalized,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
        });
    }
    tokens.sort_by_key(|t| t.id);
    Ok(tokens)
}

fn token_texts(library: &Library) -> Result<Vec<Option<String>>, TokenizerError> {
    let vocabulary = library.get_vocab(true);
    let largest = vocabulary.values().copied().max();
    let size = largest.map_or(0, |id| id as usize + 1);
    if let Some(id) = largest
        && size > 4 * vocabulary.len() + 65_536
    {
        return Err(TokenizerError::SparseIds {
            id,
            tokens: vocabulary.len(),
        });
    }
    let mut texts = vec![None; size];
    for (text, id) in vocabulary {
        texts[id as usize] = Some(text);
    }
    // An added token that is matched in normalised text is decoded from its normalised form.
    let added = library.get_added_vocabulary();
    for &id in added.get_added_tokens_decoder().keys() {
        if let Some(slot) = texts.get_mut(id as usize) {
            *slot = added.simple_id_to_token(id);
        }
    }
    Ok(texts)
}

/// What the post-processor adds, found by processing a text of one id that no vocabulary holds.
fn special_ids_around(library: &Library) -> Result<(Vec<u32>, Vec<u32>), String> {
    const TEXT: u32 = u32::MAX;
    let Some(processor) = library.get_post_processor() else {
        return Ok((Vec::new(), Vec::new()));
    };
    let run = || {
        processor.process(
            Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0),
            None,
            true,
        )
    };
    let encoding = guarded(run)?;
    let ids = encoding.get_ids();
    let at = ids
        .iter()
        .position(|&id| id == TEXT)
        .ok_or("the post-processor drops the text")?;
    Ok((ids[..at].to_vec(), ids[at + 1..].to_vec()))
}
