//! What stored keys and values cost real models, as perplexity on a text: to be asked for (`cargo test -p goldcrest --release --test
//! perplexity -- --ignored --nocapture`). The files are fetched by `cargo xtask fixtures`; a model whose file is absent is skipped.

use std::path::{Path, PathBuf};

use goldcrest::prompts::Prompts;
use goldcrest_engine::perplexity::{Perplexity, windows};
use goldcrest_engine::{Engine, EngineOptions, KvElement};
use goldcrest_format::Checkpoint;

const TOKENS: usize = 4096;
const CONTEXT: usize = 2048;

/// Bounds on the perplexity relative to that with f32.
const BOUNDS: [(KvElement, f64); 3] = [
    (KvElement::F16, 1.0005),
    (KvElement::Q8_0, 1.002),
    (KvElement::Q4, 1.03),
];

fn fixture(model: &str) -> Option<Checkpoint> {
    let named = std::env::var_os("GOLDCREST_FIXTURES").filter(|value| !value.is_empty());
    let target = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fixtures");
    let path = named.map_or_else(target, PathBuf::from).join(format!("{model}.gguf"));
    if !path.exists() {
        println!("SKIPPED: {} is absent; cargo xtask fixtures fetches it", path.display());
        return None;
    }
    Some(Checkpoint::open(&path).unwrap())
}

fn stored_keys_and_values_keep_the_perplexity(model: &str) {
    let Some(checkpoint) = fixture(model) else { return };
    let prompts = Prompts::without_template(&checkpoint).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/texts/alice.txt");
    let (before, ids) = (
        prompts.text("", false).unwrap(),
        prompts.text(&std::fs::read_to_string(path).unwrap(), false).unwrap(),
    );
    let ids = &ids[before.len()..];
    assert!(ids.len() >= TOKENS, "the text has {} tokens", ids.len());
    let measure = |kv| {
        let options = EngineOptions {
            kv,
            ..EngineOptions::exact()
        };
        let engine = Engine::open(&checkpoint, options).unwrap();
        let mut session = engine.session(CONTEXT).unwrap();
        let mut measured = Perplexity::default();
        for window in windows(&before, &ids[..TOKENS], CONTEXT) {
            measured.add_window(&mut session, &window, None).unwrap();
        }
        measured
    };
    let exact = measure(KvElement::F32);
    println!("{model}: f32 {:.5} ± {:.5}", exact.value(), exact.standard_error());
    let ratios = BOUNDS.map(|(kv, bound)| {
        let ratio = measure(kv).value() / exact.value();
        println!("{model}: {kv} × {ratio:.6}");
        (kv, ratio, bound)
    });
    for (kv, ratio, bound) in ratios {
        assert!(
            ratio <= bound,
            "{kv}: {ratio} times the perplexity with f32, at most {bound}"
        );
    }
}

#[test]
#[ignore = "takes ten minutes of two cores"]
fn smollm2() {
    stored_keys_and_values_keep_the_perplexity("smollm2-135m-instruct-q4_1");
}

#[test]
#[ignore = "takes ten minutes of two cores"]
fn gemma3() {
    stored_keys_and_values_keep_the_perplexity("gemma-3-270m-q4_k_m");
}
