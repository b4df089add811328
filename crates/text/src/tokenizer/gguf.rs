//! A tokenizer from the vocabulary of a GGUF file.

use std::borrow::Cow;
use std::collections::HashMap;

use goldcrest_format::gguf::{Array, Metadata, Strings, Value};

use super::added::{AddedToken, Matcher};
use super::error::TokenizerError;
use super::pipeline::{ByteLevelRules, Pipeline, UnigramRules, Words};
use super::pre_tokenizer;
use super::spm::{Piece, ScoredPieces, SpmRules};
use super::{Algorithm, SpecialIds, TokenTable, Tokenizer, byte_char, byte_piece, control_ids, looks_like_control};
use crate::detokenize::{ByteRule, Step};

/// Token types of GGUF, as in SentencePiece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Texts of control tokens that end a turn although no metadata key says so in many files.
const TURN_ENDS: [&str; 20] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
];

/// Keys that hold the id of a token that ends a turn or a message.
const END_KEYS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// The vocabulary as the file states it, checked: arrays of equal length, ids inside, known types.
struct Vocabulary<'m> {
    metadata: &'m Metadata,
    tokens: &'m Strings,
    types: Vec<TokenType>,
    names: SpecialIds,
}

impl Tokenizer {
    /// Builds a tokenizer from the keys `tokenizer.ggml.*`.
    ///
    /// # Errors
    /// [`TokenizerError::Metadata`] for a key that is missing or of another type, [`TokenizerError::UnknownModel`] and
    /// [`TokenizerError::UnknownPreTokenizer`] for algorithms that are not implemented, the other variants for contradictory data.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let model = metadata.str("tokenizer.ggml.model")?;
        let vocabulary = Vocabulary::read(metadata, model)?;
        match model {
            "gpt2" => vocabulary.byte_level(),
            "llama" => vocabulary.scored(),
            "t5" => vocabulary.unigram(),
            "bert" => vocabulary.wordpiece(),
            name => Err(TokenizerError::UnknownModel { name: name.into() }),
        }
    }
}

impl<'m> Vocabulary<'m> {
    fn read(metadata: &'m Metadata, model: &str) -> Result<Self, TokenizerError> {
        let tokens = metadata.strings("tokenizer.ggml.tokens")?;
        let types = match metadata.optional::<Vec<i64>>("tokenizer.ggml.token_type")? {
            Some(types) => types
                .into_iter()
                .enumerate()
                .map(token_type)
                .collect::<Result<Vec<_>, _>>()?,
            None => vec![TokenType::Normal; tokens.len()],
        };
        check_len("tokenizer.ggml.token_type", types.len(), tokens.len())?;
        let mut vocabulary = Vocabulary {
            metadata,
            tokens,
            types,
            names: SpecialIds::default(),
        };
        // Files of the first SentencePiece models leave out the ids that all of those models share.
        let default = |id: u32| (model == "llama" && (id as usize) < tokens.len()).then_some(id);
        vocabulary.names = SpecialIds {
            bos: vocabulary.id("tokenizer.ggml.bos_token_id")?.or(default(1)),
            eos: vocabulary.id("tokenizer.ggml.eos_token_id")?.or(default(2)),
            unknown: vocabulary.id("tokenizer.ggml.unknown_token_id")?.or(default(0)),
            padding: vocabulary.id("tokenizer.ggml.padding_token_id")?,
        };
        Ok(vocabulary)
    }

    fn id(&self, key: &'static str) -> Result<Option<u32>, TokenizerError> {
        let tokens = self.tokens.len();
        match self.metadata.optional::<i64>(key)? {
            // Some writers store "none" as the largest number or as -1.
            None | Some(-1 | 0xFFFF_FFFF) => Ok(None),
            Some(id) => match u32::try_from(id) {
                Ok(small) if (small as usize) < tokens => Ok(Some(small)),
                _ => Err(TokenizerError::SpecialOutOfRange { key, id, tokens }),
            },
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, TokenizerError> {
        Ok(self.metadata.opt_bool(key)?.unwrap_or(default))
    }

    fn ids(&self) -> impl Iterator<Item = (u32, &'m str, TokenType)> {
        (0..)
            .zip(self.tokens.iter())
            .zip(&self.types)
            .map(|((id, text), &kind)| (id, text, kind))
    }

    fn byte_level(&self) -> Result<Tokenizer, TokenizerError> {
        let rules = pre_tokenizer::by_name(self.metadata.opt_str("tokenizer.ggml.pre")?)?;
        let of_kind = |normal: bool| {
            let ids = self
                .ids()
                .filter(move |&(_, _, kind)| (kind == TokenType::Normal) == normal);
            ids.map(|(id, text, _)| (text.to_owned(), id)).collect::<Words>()
        };
        let (mut words, others) = (of_kind(true), of_kind(false));
        let merges = self.merges(|text| words.contains_key(text) || others.contains_key(text))?;
        // Control, unused and user-defined tokens belong to the words only where a merge makes use of them. Of equal texts the last id
        // counts.
        for side in merges.iter().flat_map(|(left, right)| [left, right]) {
            if let Some(&id) = others.get(side) {
                let word = words.entry(side.clone()).or_insert(id);
                *word = id.max(*word);
            }
        }
        let rules_of_words = ByteLevelRules {
            nfc: rules.nfc,
            splits: rules.splits,
            ignore_merges: rules.ignore_merges,
        };
        let pipeline = Pipeline::byte_level_bpe(words, merges, &rules_of_words)?;
        let around = self.around(rules.add_bos, false)?;
        let decoder = vec![Step::ByteLevel { held: Vec::new() }];
        let texts = self
            .ids()
            .map(|(_, text, kind)| (kind != TokenType::Unused).then_some(text));
        self.finish(
            Algorithm::Library(Box::new(pipeline)),
            texts,
            decoder,
            around,
            byte_char,
        )
    }

    /// The merges as pairs of token texts. Each side and the result must be tokens, which `is_token` tells.
    fn merges(&self, is_token: impl Fn(&str) -> bool) -> Result<Vec<(String, String)>, TokenizerError> {
        let mut joined = String::new();
        let stored = self.metadata.strings("tokenizer.ggml.merges")?;
        let mut merges = Vec::with_capacity(stored.len());
        for (index, text) in stored.iter().enumerate() {
            // A side is never empty, so the separating space is not the first character.
            let space = text.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
            let sides = space.map(|at| (&text[..at], &text[at + 1..]));
            let sides = sides.filter(|&(left, right)| {
                joined.clear();
                joined.extend([left, right]);
                [left, right, joined.as_str()].into_iter().all(&is_token)
            });
            let (left, right) = sides.ok_or_else(|| TokenizerError::BadMerge {
                index,
                text: text.into(),
            })?;
            merges.push((left.to_owned(), right.to_owned()));
        }
        Ok(merges)
    }

    fn scored(&self) -> Result<Tokenizer, TokenizerError> {
        let scores = self.scores()?;
        let mut byte_ids = [None; 256];
        let mut pieces: HashMap<Box<str>, Piece> = HashMap::with_capacity(self.tokens.len());
        for (id, text, kind) in self.ids() {
            match kind {
                TokenType::Normal | TokenType::Unused | TokenType::UserDefined => {
                    let text = space_marks(text, kind);
                    let user_characters = if kind == TokenType::UserDefined {
                        text.chars().count()
                    } else {
                        0
                    };
                    let piece = Piece {
                        id,
                        user_characters,
                        score: scores[id as usize],
                        unused: kind == TokenType::Unused,
                    };
                    pieces.entry(text.into()).or_insert(piece);
                }
                TokenType::Byte => {
                    if let Some(byte) = (0..=255).find(|&b| byte_piece(b) == text) {
                        byte_ids[usize::from(byte)].get_or_insert(id);
                    }
                }
                TokenType::Unknown | TokenType::Control => {}
            }
        }
        let rules = SpmRules {
            add_space_prefix: self.flag("tokenizer.ggml.add_space_prefix", true)?,
            remove_extra_whitespaces: self.flag("tokenizer.ggml.remove_extra_whitespaces", false)?,
        };
        let algorithm = Algorithm::Scores(Box::new(ScoredPieces::new(pieces, byte_ids, self.names.unknown, rules)));
        self.finish_sentencepiece(algorithm, rules, self.around(true, false)?)
    }

    /// Scores by id, all of them numbers. A file whose pieces all have one score carries no order; the order of ids stands in, for
    /// pieces are numbered as they were learnt.
    fn scores(&self) -> Result<Vec<f32>, TokenizerError> {
        let mut scores = self.metadata.required::<Vec<f32>>("tokenizer.ggml.scores")?;
        check_len("tokenizer.ggml.scores", scores.len(), self.tokens.len())?;
        if let Some(id) = scores.iter().position(|s| s.is_nan()) {
            return Err(TokenizerError::BadScore { id });
        }
        let mut normal = scores
            .iter()
            .zip(&self.types)
            .filter(|(_, kind)| **kind == TokenType::Normal)
            .map(|(score, _)| score);
        let first = normal.next();
        if normal.all(|score| Some(score) == first) {
            scores
                .iter_mut()
                .enumerate()
                .for_each(|(id, score)| *score = -(id as f32));
        }
        Ok(scores)
    }

    fn unigram(&self) -> Result<Tokenizer, TokenizerError> {
        let scores = self.scores()?;
        let pieces = self
            .ids()
            .map(|(id, text, _)| (text.to_owned(), f64::from(scores[id as usize])))
            .collect();
        let charsmap = match self.metadata.get("tokenizer.ggml.precompiled_charsmap") {
            Some(Value::Array(Array::U8(bytes))) => bytes.clone(),
            Some(Value::Array(Array::I8(bytes))) => bytes.iter().map(|b| b.cast_unsigned()).collect(),
            _ => Vec::new(),
        };
        let rules = SpmRules {
            add_space_prefix: self.flag("tokenizer.ggml.add_space_prefix", true)?,
            remove_extra_whitespaces: self.flag("tokenizer.ggml.remove_extra_whitespaces", true)?,
        };
        let unigram_rules = UnigramRules {
            byte_fallback: self.types.contains(&TokenType::Byte),
            charsmap: &charsmap,
            remove_extra_whitespaces: rules.remove_extra_whitespaces,
            add_space_prefix: rules.add_space_prefix,
        };
        let pipeline = Pipeline::unigram(pieces, self.names.unknown.map(|id| id as usize), &unigram_rules)?;
        self.finish_sentencepiece(Algorithm::Library(Box::new(pipeline)), rules, self.around(false, true)?)
    }

    fn finish_sentencepiece(
        &self,
        algorithm: Algorithm,
        rules: SpmRules,
        around: Around,
    ) -> Result<Tokenizer, TokenizerError> {
        let mut decoder = Vec::new();
        if rules.add_space_prefix || rules.remove_extra_whitespaces {
            decoder.push(Step::DropPrefix {
                mark: '▁',
                all: rules.remove_extra_whitespaces,
                done: false,
            });
        }
        decoder.push(Step::Replace {
            from: "▁".into(),
            to: " ".into(),
        });
        decoder.push(Step::ByteFallback {
            held: Vec::new(),
            rule: ByteRule::PerCharacter,
        });
        // SentencePiece shows the unknown piece as a mark between spaces.
        let texts = self
            .ids()
            .map(|(_, text, kind)| Some(if kind == TokenType::Unknown { " ⁇ " } else { text }));
        self.finish(algorithm, texts, decoder, around, byte_piece)
    }

    /// BERT's vocabulary: the file marks word starts with `▁` and leaves continuations bare.
    fn wordpiece(&self) -> Result<Tokenizer, TokenizerError> {
        let spelling = |text: &str, kind: TokenType| match (kind, text.strip_prefix('▁')) {
            (TokenType::Normal, Some(start)) => start.to_owned(),
            (TokenType::Normal, None) => format!("##{text}"),
            _ => text.to_owned(),
        };
        let texts: Vec<String> = self.ids().map(|(_, text, kind)| spelling(text, kind)).collect();
        let unknown = self
            .names
            .unknown
            .map_or("[UNK]", |id| self.tokens.get(id as usize).unwrap_or_default());
        let vocabulary = texts.iter().cloned().zip(0..).collect();
        let pipeline = Pipeline::wordpiece(vocabulary, unknown.to_owned())?;
        let mut around = self.around(true, false)?;
        if let Some(class) = self.id("tokenizer.ggml.cls_token_id")? {
            around.0 = vec![class];
        }
        // The key is spelt like this in the files.
        around.1.extend(self.id("tokenizer.ggml.seperator_token_id")?);
        let decoder = vec![Step::WordPiece {
            prefix: "##".into(),
            cleanup: true,
            started: false,
        }];
        self.finish(
            Algorithm::Library(Box::new(pipeline)),
            texts.iter().map(|text| Some(text.as_str())),
            decoder,
            around,
            byte_piece,
        )
    }

    fn around(&self, bos_by_default: bool, eos_by_default: bool) -> Result<Around, TokenizerError> {
        let bos = self.flag("tokenizer.ggml.add_bos_token", bos_by_default)?;
        let eos = self.flag("tokenizer.ggml.add_eos_token", eos_by_default)?;
        Ok((
            self.names.bos.filter(|_| bos).into_iter().collect(),
            self.names.eos.filter(|_| eos).into_iter().collect(),
        ))
    }

    fn finish<'t>(
        &self,
        mut algorithm: Algorithm,
        texts: impl Iterator<Item = Option<&'t str>>,
        decoder: Vec<Step>,
        around: Around,
        byte_spelling: fn(u8) -> String,
    ) -> Result<Tokenizer, TokenizerError> {
        let mut tokens = TokenTable::new(texts, |id| self.types.get(id as usize) == Some(&TokenType::Control));
        tokens.find_bytes(byte_spelling);
        let added = self.added_tokens();
        if let Algorithm::Library(pipeline) = &mut algorithm {
            pipeline.set_control(&added);
        }
        let control = control_ids(&added);
        let added = Matcher::new(added, |t| t.content.clone());
        let (names, ends) = (self.names, self.ends()?);
        Ok(Tokenizer {
            algorithm,
            added,
            late_added: Matcher::default(),
            tokens,
            decoder,
            around,
            names,
            ends,
            control,
        })
    }

    fn added_tokens(&self) -> Vec<AddedToken> {
        let is_added = |kind| matches!(kind, TokenType::Control | TokenType::Unknown | TokenType::UserDefined);
        let added = self.ids().filter(|&(_, _, kind)| is_added(kind));
        added
            .map(|(id, text, kind)| AddedToken {
                id,
                content: space_marks(text, kind).into_owned(),
                special: kind != TokenType::UserDefined,
                control: kind != TokenType::UserDefined || looks_like_control(text),
                normalized: false,
                lstrip: false,
                rstrip: false,
            })
            .collect()
    }

    fn ends(&self) -> Result<Vec<u32>, TokenizerError> {
        let mut ends: Vec<u32> = self.names.eos.into_iter().collect();
        for key in END_KEYS {
            ends.extend(self.id(key)?);
        }
        let named = |name: &str| {
            self.ids()
                .find(|&(_, text, kind)| text == name && is_marked(kind))
                .map(|(id, _, _)| id)
        };
        // In the harmony format <|end|> ends a message inside a reply; <|return|> and <|call|> end the reply.
        let harmony = named("<|return|>").is_some() && named("<|call|>").is_some();
        let turn_ends = self
            .ids()
            .filter(|&(_, text, kind)| is_marked(kind) && TURN_ENDS.contains(&text) && !(harmony && text == "<|end|>"));
        ends.extend(turn_ends.map(|(id, _, _)| id));
        ends.sort_unstable();
        ends.dedup();
        Ok(ends)
    }
}

/// Ids put before and after a text.
type Around = (Vec<u32>, Vec<u32>);

fn is_marked(kind: TokenType) -> bool {
    matches!(kind, TokenType::Control | TokenType::UserDefined)
}

/// A user-defined run of spaces in the vocabulary's own spelling, which the converter replaced.
fn space_marks(text: &str, kind: TokenType) -> Cow<'_, str> {
    let spaces = kind == TokenType::UserDefined && !text.is_empty() && text.chars().all(|c| c == ' ');
    if spaces {
        Cow::Owned(text.replace(' ', "▁"))
    } else {
        Cow::Borrowed(text)
    }
}

fn token_type((id, number): (usize, i64)) -> Result<TokenType, TokenizerError> {
    Ok(match number {
        1 => TokenType::Normal,
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        kind => return Err(TokenizerError::BadTokenType { id, kind }),
    })
}

fn check_len(key: &'static str, found: usize, tokens: usize) -> Result<(), TokenizerError> {
    if found == tokens {
        Ok(())
    } else {
        Err(TokenizerError::LengthMismatch { key, found, tokens })
    }
}
