//! Compiles the first part of the input as a chat template and renders it over a conversation whose text is the rest. Besides not
//! failing: the prompt in pieces has the text of the plain rendering.
#![no_main]

use goldcrest_text::{ChatTemplate, ControlTexts, Piece, RenderInput};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|input: (&str, &str)| {
    let (source, text) = input;
    let Ok(template) = ChatTemplate::new(source) else { return };
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": text}),
        json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": text}}}]}),
    ];
    let tools = [json!({"type": "function", "function": {"name": "f", "description": text}})];
    let input = RenderInput { messages: &messages, tools: Some(&tools), add_generation_prompt: true, ..RenderInput::default() };
    let control = ControlTexts::from_iter(["<|im_start|>", "<|im_end|>", "[INST]", "</s>"]);
    let (Ok(plain), Ok(prompt)) = (template.render(&input), template.render_prompt(&input, &control)) else { return };
    assert_eq!(prompt.text(), plain);
    let joined: String = prompt
        .pieces()
        .iter()
        .map(|piece| match piece {
            Piece::Markup(text) | Piece::Content(text) => *text,
            Piece::Token(_) => "",
        })
        .collect();
    assert_eq!(joined, plain);
});
