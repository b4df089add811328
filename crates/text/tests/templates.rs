//! The glue around the template engine, limits, and how message text is told apart.

use goldcrest_text::{ChatTemplate, ControlTexts, DateTime, Piece, RenderInput, TemplateError};
use serde_json::{Value, json};

fn control() -> ControlTexts {
    ControlTexts::from_iter(["<|im_start|>", "<|im_end|>", "<think>", "</think>", "[INST]"])
}

fn render(source: &str, messages: &[Value]) -> Result<String, TemplateError> {
    ChatTemplate::new(source)?.render(&RenderInput {
        messages,
        ..RenderInput::default()
    })
}

/// Content pieces of the rendering, each as (start, text).
fn content(source: &str, text: &str) -> Result<Vec<(usize, String)>, TemplateError> {
    let messages = [json!({"role": "user", "content": text})];
    let input = RenderInput {
        messages: &messages,
        ..RenderInput::default()
    };
    let template = ChatTemplate::new(source)?;
    let prompt = template.render_prompt(&input, &control())?;
    assert_eq!(prompt.text(), template.render(&input)?);
    let (mut at, mut parts) = (0, Vec::new());
    for piece in prompt.pieces() {
        match piece {
            Piece::Markup(text) => at += text.len(),
            Piece::Content(text) => {
                parts.push((at, text.to_owned()));
                at += text.len();
            }
            Piece::Token(_) => panic!("no tokens are given"),
        }
    }
    assert_eq!(at, prompt.text().len());
    Ok(parts)
}

#[test]
fn tojson_writes_what_python_writes() {
    let source = |options: &str| format!("{{{{ messages[0] | tojson({options}) }}}}");
    let messages = [
        json!({"b": "é <&'\"\n\u{7f}😀", "a": [1, 1.0, 1e-7, 1e22, 12345678901234567890_u64, -3e10, true, null], "c": {}}),
    ];
    let check = |options: &str, want: &str| assert_eq!(render(&source(options), &messages).unwrap(), want);
    let numbers = "1, 1.0, 1e-07, 1e+22, 12345678901234567890, -30000000000.0, true, null";
    check(
        "",
        &format!("{{\"b\": \"é <&'\\\"\\n\u{7f}😀\", \"a\": [{numbers}], \"c\": {{}}}}"),
    );
    check(
        "ensure_ascii=true",
        &format!("{{\"b\": \"\\u00e9 <&'\\\"\\n\\u007f\\ud83d\\ude00\", \"a\": [{numbers}], \"c\": {{}}}}"),
    );
    check(
        "sort_keys=true, separators=(',', ':')",
        &format!(
            "{{\"a\":[{}],\"b\":\"é <&'\\\"\\n\u{7f}😀\",\"c\":{{}}}}",
            numbers.replace(' ', "")
        ),
    );
    let small = [json!({"x": [1], "y": []})];
    assert_eq!(
        render(&source("indent=2"), &small).unwrap(),
        "{\n  \"x\": [\n    1\n  ],\n  \"y\": []\n}"
    );
    assert!(matches!(
        render(&source("colour=1"), &small),
        Err(TemplateError::Failed { .. })
    ));
    assert!(matches!(
        render("{{ missing | tojson }}", &small),
        Err(TemplateError::Failed { .. })
    ));
}

#[test]
fn templates_are_bounded() {
    let endless = "{% for i in range(100000) %}{% for j in range(100000) %}{{ j }}{% endfor %}{% endfor %}";
    assert!(matches!(render(endless, &[]), Err(TemplateError::TooMuchWork)));
    let recursive = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    assert!(matches!(render(recursive, &[]), Err(TemplateError::Failed { .. })));
    let huge = "{{ 'x' * 100000000000 }}";
    assert!(matches!(
        render(huge, &[]),
        Err(TemplateError::TooMuchWork | TemplateError::Failed { .. })
    ));
    assert!(matches!(
        ChatTemplate::new("{% if %}"),
        Err(TemplateError::Syntax { line: Some(1), .. })
    ));
    let included = render("{% include 'secret' %}", &[]);
    assert!(matches!(
        included,
        Err(TemplateError::Failed { .. } | TemplateError::Syntax { .. })
    ));
}

#[test]
fn the_clock_is_absent_unless_given() {
    let template = ChatTemplate::new("{{ strftime_now('%Y') if strftime_now is defined else 'none' }}").unwrap();
    assert_eq!(template.render(&RenderInput::default()).unwrap(), "none");
    let now = DateTime {
        year: 2031,
        month: 5,
        day: 6,
        hour: 7,
        minute: 8,
        second: 9,
    };
    assert_eq!(
        template
            .render(&RenderInput {
                now: Some(now),
                ..RenderInput::default()
            })
            .unwrap(),
        "2031"
    );
}

#[test]
fn refusals_carry_the_words_of_the_template() {
    let refused = render("{{ raise_exception('only ' ~ 2 ~ ' turns') }}", &[]);
    assert!(matches!(refused, Err(TemplateError::Refused { message }) if message == "only 2 turns"));
    let both = RenderInput {
        add_generation_prompt: true,
        continue_final_message: true,
        ..RenderInput::default()
    };
    let template = ChatTemplate::new("x").unwrap();
    assert!(matches!(
        template.render(&both),
        Err(TemplateError::ContradictoryOptions)
    ));
    let nothing = RenderInput {
        continue_final_message: true,
        ..RenderInput::default()
    };
    assert!(matches!(
        template.render(&nothing),
        Err(TemplateError::NothingToContinue)
    ));
}

#[test]
fn continuation_cuts_behind_the_last_text() {
    let messages = [
        json!({"role": "user", "content": "hi"}),
        json!({"role": "assistant", "content": "Sure \n"}),
    ];
    let input = RenderInput {
        messages: &messages,
        continue_final_message: true,
        ..RenderInput::default()
    };
    let exact = ChatTemplate::new("{% for m in messages %}<{{ m.content }}>{% endfor %}").unwrap();
    assert_eq!(exact.render(&input).unwrap(), "<hi><Sure \n");
    let trimming = ChatTemplate::new("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}").unwrap();
    assert_eq!(trimming.render(&input).unwrap(), "<hi><Sure");
}

const CHAT: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

#[test]
fn ordinary_text_is_not_cut() {
    assert_eq!(content(CHAT, "hello, a > b").unwrap(), []);
    assert_eq!(content(CHAT, "").unwrap(), []);
}

#[test]
fn characters_that_could_begin_a_control_token_are_content() {
    let start = "<|im_start|>user\n".len();
    assert_eq!(content(CHAT, "a<b").unwrap(), [(start + 1, "<".into())]);
    assert_eq!(content(CHAT, "<|im_end|>").unwrap(), [(start, "<".into())]);
    assert_eq!(content(CHAT, "\u{F0000}<").unwrap(), [(start + 4, "<".into())]);
    // Text that would complete a control token of the template.
    assert_eq!(
        content("<|im_end|{{ messages[0].content }}", "> x").unwrap(),
        [(9, ">".into())]
    );
}

#[test]
fn control_text_that_the_template_makes_of_messages_is_content() {
    assert_eq!(
        content("{{ messages[0].content | lower }}", "<|IM_END|>").unwrap(),
        [(0, "<".into())]
    );
    assert_eq!(
        content("{{ messages[0].content | replace('X', '') }}", "<X|im_end|>").unwrap(),
        [(0, "<".into())]
    );
    assert_eq!(
        content("{{ messages[0].content[2:] }}", "ab[INST]").unwrap(),
        [(0, "[".into())]
    );
    assert_eq!(
        content("{{ messages | tojson(ensure_ascii=true) }}", "[INST]")
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_template_that_looks_for_other_tags_keeps_working() {
    let source = "{% set c = messages[0].content %}{{ c.split('</note>')[-1] }}<|im_end|>";
    assert_eq!(content(source, "<note>x</note>a<|im_end|>").unwrap(), [(1, "<".into())]);
    assert_eq!(content(source, "<note>x</note>a").unwrap(), []);
}

#[test]
fn what_cannot_be_kept_apart_is_refused() {
    let source = "{{ messages[0].content.split('</think>')[-1] }}";
    assert!(matches!(
        content(source, "<think>x</think>y"),
        Err(TemplateError::InseparableControlText)
    ));
    assert_eq!(content(source, "y").unwrap(), []);
}

#[test]
fn roles_are_the_templates_words() {
    let control = ControlTexts::from_iter(["user", "<|user|>"]);
    let source = "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content if m.role == 'user' }}{% endfor %}";
    let template = ChatTemplate::new(source).unwrap();
    let messages = [json!({"role": "user", "content": "I use it"})];
    let input = RenderInput {
        messages: &messages,
        ..RenderInput::default()
    };
    let prompt = template.render_prompt(&input, &control).unwrap();
    assert_eq!(prompt.text(), "<|user|>I use it");
    assert_eq!(prompt.pieces()[0], Piece::Markup("<|user|>I "));
}
