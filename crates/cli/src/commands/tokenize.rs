//! `tokenize`: the ids of a text.

use std::io::{Read, Write, stdin, stdout};

use anyhow::Context;
use goldcrest::prompts::Prompts;
use goldcrest_text::{Piece, Tokenizer};
use serde_json::{Value, json};

use crate::args::TokenizeArgs;
use crate::model::open_checkpoint;

pub fn run(args: &TokenizeArgs) -> anyhow::Result<()> {
    let (_, checkpoint) = open_checkpoint(&args.model)?;
    let prompts = Prompts::without_template(&checkpoint)?;
    let tokenizer = prompts.tokenizer();
    let ids = match &args.text {
        Some(text) => encode(tokenizer, text, args.special)?,
        None => {
            let mut bytes = Vec::new();
            stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
            match (args.special, String::from_utf8(bytes)) {
                (special, Ok(text)) => encode(tokenizer, &text, special)?,
                (true, Err(error)) => tokenizer.encode_bytes(error.as_bytes())?,
                (false, Err(error)) => {
                    return Err(error).context("standard input is not UTF-8; --special takes any bytes");
                }
            }
        }
    };
    let mut out = stdout().lock();
    let text = |id: u32| tokenizer.token_text(id).unwrap_or_default();
    if args.ids {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(out, "{}", ids.join(","))?;
    } else if args.json {
        let pieces: Vec<Value> = ids.iter().map(|&id| json!(text(id))).collect();
        writeln!(out, "{}", json!({ "ids": ids, "pieces": pieces }))?;
    } else {
        for id in ids {
            writeln!(out, "{id:>7}  {:?}", text(id))?;
        }
    }
    Ok(())
}

fn encode(tokenizer: &Tokenizer, text: &str, special: bool) -> anyhow::Result<Vec<u32>> {
    let piece = if special {
        Piece::Markup(text)
    } else {
        Piece::Content(text)
    };
    Ok(tokenizer.encode_pieces(&[piece])?)
}
