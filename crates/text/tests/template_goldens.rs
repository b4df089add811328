//! Every golden template renders byte for byte as transformers does, refusals included, plain and in pieces.

mod common;

use common::{goldens, json};
use goldcrest_text::{ChatTemplate, ControlTexts, DateTime, Piece, RenderInput, SpecialTexts, TemplateError};
use serde_json::Value;

/// Control tokens in the spirit of the templates' own marks; messages may contain `<`, `[`, `{` and `(` anywhere.
const CONTROL: [&str; 12] = [
    "<|im_start|>",
    "<|im_end|>",
    "<s>",
    "</s>",
    "[[system]]",
    "[[end]]",
    "{INST}",
    "(end)",
    "｜stop｜",
    "<<stop>>",
    "<|start|>",
    "<|end|>",
];

fn time(text: &str) -> DateTime {
    let field: Vec<u32> = text.split(['-', 'T', ':']).map(|f| f.parse().unwrap()).collect();
    DateTime {
        year: field[0] as i32,
        month: field[1],
        day: field[2],
        hour: field[3],
        minute: field[4],
        second: field[5],
    }
}

/// Calls `check` with each golden rendering: file, its JSON, the case's JSON.
fn for_each_rendering(mut check: impl FnMut(&str, &Value, &Value)) {
    let mut files: Vec<_> = std::fs::read_dir(goldens().join("chat_templates"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    files.sort();
    assert_eq!(files.len(), 12);
    for path in files {
        let file = json(&path);
        for rendering in file["renderings"].as_array().unwrap() {
            check(path.file_name().unwrap().to_str().unwrap(), &file, rendering);
        }
    }
}

fn input<'a>(file: &'a Value, rendering: &'a Value) -> RenderInput<'a> {
    let list = |key: &str| rendering[key].as_array().map(Vec::as_slice);
    RenderInput {
        messages: list("messages").unwrap(),
        tools: list("tools"),
        documents: list("documents"),
        add_generation_prompt: rendering["add_generation_prompt"].as_bool().unwrap(),
        continue_final_message: rendering["continue_final_message"].as_bool().unwrap(),
        extra: rendering["kwargs"].as_object(),
        special: SpecialTexts {
            bos: file["bos_token"].as_str(),
            eos: file["eos_token"].as_str(),
            unknown: file["unk_token"].as_str(),
            padding: None,
        },
        now: file["now"].as_str().map(time),
    }
}

#[test]
fn renderings_equal_the_reference() {
    let mut wrong = Vec::new();
    for_each_rendering(|name, file, rendering| {
        let template = ChatTemplate::new(file["template"].as_str().unwrap()).unwrap();
        let got = template.render(&input(file, rendering));
        match (rendering["rendered"].as_str(), rendering["error"].as_str(), &got) {
            (Some(expected), None, Ok(text)) if text == expected => {}
            (None, Some(error), Err(TemplateError::Refused { message }))
                if error == format!("TemplateError: {message}") => {}
            _ => wrong.push(format!("{name}:\n got {got:?}\nwant {:?}", rendering["rendered"])),
        }
    });
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn prompts_in_pieces_have_the_same_text() {
    let control = ControlTexts::from_iter(CONTROL);
    for_each_rendering(|name, file, rendering| {
        let template = ChatTemplate::new(file["template"].as_str().unwrap()).unwrap();
        let input = input(file, rendering);
        let Ok(plain) = template.render(&input) else { return };
        let prompt = template
            .render_prompt(&input, &control)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(prompt.text(), plain, "{name}");
        let joined: String = prompt
            .pieces()
            .iter()
            .map(|p| match p {
                Piece::Markup(text) | Piece::Content(text) => *text,
                Piece::Token(_) => panic!("no tokens are given"),
            })
            .collect();
        assert_eq!(joined, plain, "{name}");
    });
}
