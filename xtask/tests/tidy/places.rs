//! Rules about what may stand where.

use crate::source::{Source, has_word};
use crate::{Violation, violation};

/// Where unsafe code may be, and why.
const UNSAFE_PLACES: [(&str, &str); 4] = [
    ("crates/kernels/", "instructions of the processor"),
    ("crates/cpu/src/pool", "threads that borrow from their caller"),
    ("crates/cpu/src/buffer", "memory in huge pages"),
    (
        "crates/format/tests/hostile/counting.rs",
        "an allocator that counts, for the bound on allocations",
    ),
];
/// How far above its block a reason may begin.
const REASON_LINES: usize = 12;

const ENVIRONMENT_PLACES: [&str; 3] = ["crates/cli/", "crates/hub/src/environment.rs", "xtask/src/main.rs"];
/// Tests find the models they run on by this variable.
const TEST_VARIABLE: &str = "GOLDCREST_FIXTURES";

const FAMILIES: [&str; 11] = [
    "llama",
    "mistral",
    "ministral",
    "mixtral",
    "qwen",
    "gemma",
    "smollm",
    "deepseek",
    "falcon",
    "granite",
    "cohere",
];
/// Where family names are: a path, a word that is no family there (none: the whole place is exempt), and why.
const FAMILY_PLACES: &[(&str, Option<&str>, &str)] = &[
    ("crates/model/src/families/", None, "what families are for"),
    ("crates/hub/src/catalogue.rs", None, "the names of published models"),
    (
        "crates/text/src/tokenizer/pre_tokenizer.rs",
        None,
        "pre-tokenizers are published under the names of families",
    ),
    (
        "crates/text/src/tokenizer/gguf.rs",
        Some("\"llama\""),
        "GGUF's name for a SentencePiece vocabulary",
    ),
    (
        "crates/text/src/tokenizer/error.rs",
        Some("llama"),
        "GGUF's name for a SentencePiece vocabulary",
    ),
    (
        "crates/model/src/spec/rope.rs",
        Some("llama3"),
        "the published name of a rope scaling",
    ),
    (
        "crates/model/src/read/rope.rs",
        Some("llama3"),
        "the published name of a rope scaling",
    ),
    (
        "crates/model/src/plan/print.rs",
        Some("llama3"),
        "the published name of a rope scaling",
    ),
    (
        "crates/cli/src/args.rs",
        Some("llama.cpp"),
        "the name of a program whose habits differ",
    ),
    (
        "xtask/src/emulate.rs",
        Some("llama_quant256"),
        "the name of a golden case",
    ),
    ("xtask/src/fixtures.rs", None, "the names of published models"),
    ("xtask/src/synth/", None, "the shapes of published models"),
];

/// Each dependency and its module: one in each crate that needs it.
pub(crate) const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("anyhow", &["crates/cli/src/"]),
    ("clap", &["crates/cli/src/"]),
    ("clap_complete", &["crates/cli/src/"]),
    ("ctrlc", &["crates/cli/src/interrupt.rs"]),
    (
        "half",
        &[
            "crates/format/src/blocks/",
            "crates/kernels/src/float16.rs",
            "crates/cpu/src/buffer.rs",
        ],
    ),
    ("indicatif", &["crates/cli/src/"]),
    // The replacements of functions that clippy.toml bans: there is nothing to wrap.
    ("libm", &["crates/"]),
    ("minijinja", &["crates/text/src/template"]),
    ("minijinja_contrib", &["crates/text/src/template"]),
    ("miniz_oxide", &["crates/hub/src/wheel"]),
    ("rustix", &["crates/cpu/src/", "crates/format/src/source.rs"]),
    ("rustls_graviola", &["crates/hub/src/tls.rs"]),
    ("rustls_native_certs", &["crates/hub/src/tls.rs"]),
    ("rustyline", &["crates/cli/src/"]),
    // A module of ours has this name too.
    ("safetensors", &["crates/format/src/", "crates/cli/src/"]),
    (
        "serde",
        &[
            "crates/format/src/",
            "crates/text/src/",
            "crates/verify/src/",
            "crates/cli/src/",
        ],
    ),
    // Configurations pass between crates as JSON values.
    (
        "serde_json",
        &[
            "crates/format/src/",
            "crates/model/src/read/",
            "crates/text/src/",
            "crates/hub/src/listing.rs",
            "crates/verify/src/",
            "crates/cli/src/",
        ],
    ),
    ("sha2", &["crates/hub/src/digest.rs", "crates/engine/src/digest.rs"]),
    // Every module has its own error.
    ("thiserror", &["crates/"]),
    ("tokenizers", &["crates/text/src/tokenizer"]),
    ("ureq", &["crates/hub/src/http.rs", "crates/hub/src/tls.rs"]),
];

pub(crate) fn exempt_paths() -> impl Iterator<Item = &'static str> {
    FAMILY_PLACES
        .iter()
        .map(|(path, ..)| *path)
        .chain(UNSAFE_PLACES.iter().map(|(path, _)| *path))
}

pub(crate) fn unsafe_code(source: &Source) -> Vec<Violation> {
    let allowed = UNSAFE_PLACES.iter().any(|(place, _)| source.path.starts_with(place));
    let lines: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for (index, code) in source
        .code
        .lines()
        .enumerate()
        .filter(|(_, code)| has_word(code, "unsafe"))
    {
        if !allowed {
            found.push(violation(source, index + 1, "unsafe code has no place here"));
        }
        // A function declares what its callers must do; a block or an implementation says why it holds.
        let needs_reason = code.contains("unsafe {") || code.contains("unsafe impl");
        let above = &lines[index.saturating_sub(REASON_LINES)..=index];
        if needs_reason && !above.iter().any(|line| line.contains("SAFETY")) {
            found.push(violation(source, index + 1, "unsafe code without its SAFETY reason"));
        }
    }
    found
}

pub(crate) fn environment(source: &Source) -> Vec<Violation> {
    if ENVIRONMENT_PLACES.iter().any(|place| source.path.starts_with(place)) {
        return Vec::new();
    }
    let product = source.product_lines(&source.code).count();
    let mut found = Vec::new();
    for (index, (code, line)) in source.code.lines().zip(source.uncommented.lines()).enumerate() {
        let reads = ["env::var", "env::vars", "option_env!"]
            .iter()
            .any(|call| code.contains(call));
        let in_test = index >= product && line.contains(TEST_VARIABLE);
        if reads && !in_test {
            found.push(violation(
                source,
                index + 1,
                "an environment variable is read outside cli and hub",
            ));
        }
    }
    found
}

pub(crate) fn family_names(source: &Source) -> Vec<Violation> {
    let here: Vec<_> = FAMILY_PLACES
        .iter()
        .filter(|(place, ..)| source.path.starts_with(place))
        .collect();
    if here.iter().any(|(_, word, _)| word.is_none()) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in source.product_lines(&source.uncommented) {
        let mut line = line.to_lowercase();
        for word in here.iter().filter_map(|(_, word, _)| *word) {
            line = line.replace(word, "");
        }
        let names = FAMILIES.iter().filter(|name| line.contains(*name));
        found.extend(names.map(|name| violation(source, number, format!("the family name {name} has no place here"))));
    }
    found
}

pub(crate) fn dependency_names(source: &Source) -> Vec<Violation> {
    if !source.path.starts_with("crates/") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in source.product_lines(&source.code) {
        for (name, places) in DEPENDENCIES {
            if names_crate(line, name) && !places.iter().any(|place| source.path.starts_with(place)) {
                found.push(violation(
                    source,
                    number,
                    format!("{name} is wrapped in {}", places.join(", ")),
                ));
            }
        }
    }
    found
}

/// `name::` at the beginning of a path, or `use name`.
fn names_crate(line: &str, name: &str) -> bool {
    let path = format!("{name}::");
    let is_inside = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let in_path = line
        .match_indices(&path)
        .any(|(at, _)| !line[..at].chars().next_back().is_some_and(is_inside));
    in_path || line.contains(&format!("use {name};")) || line.contains(&format!("use {name} as "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: fn(&Source) -> Vec<Violation>, path: &str, text: &str) -> usize {
        rule(&Source::new(path, text)).len()
    }

    #[test]
    fn unsafe_code_out_of_place_or_without_reason_is_found() {
        let reasoned = "// SAFETY: the length was checked\nlet x = unsafe { y() };\n";
        assert_eq!(count(unsafe_code, "crates/kernels/src/a.rs", reasoned), 0);
        assert_eq!(count(unsafe_code, "crates/model/src/a.rs", reasoned), 1);
        assert_eq!(
            count(unsafe_code, "crates/kernels/src/a.rs", "let x = unsafe { y() };\n"),
            1
        );
        assert_eq!(
            count(unsafe_code, "crates/cpu/src/pool.rs", "unsafe impl Send for A {}\n"),
            1
        );
        assert_eq!(
            count(
                unsafe_code,
                "crates/model/src/a.rs",
                "// unsafe { }\nlet s = \"unsafe { }\";\n"
            ),
            0
        );
    }

    #[test]
    fn environment_reads_out_of_place_are_found() {
        let read = "let x = std::env::var(\"X\");\n";
        assert_eq!(count(environment, "crates/engine/src/a.rs", read), 1);
        assert_eq!(count(environment, "crates/engine/tests/a.rs", read), 1);
        assert_eq!(count(environment, "crates/cli/src/main.rs", read), 0);
        let fixture = "let x = std::env::var_os(\"GOLDCREST_FIXTURES\");\n";
        assert_eq!(count(environment, "crates/engine/tests/a.rs", fixture), 0);
        assert_eq!(count(environment, "crates/engine/src/a.rs", fixture), 1);
    }

    #[test]
    fn family_names_out_of_place_are_found() {
        let named = "if name == \"Qwen2\" { }\n";
        assert_eq!(count(family_names, "crates/engine/src/a.rs", named), 1);
        assert_eq!(count(family_names, "crates/model/src/families/a.rs", named), 0);
        assert_eq!(
            count(family_names, "crates/engine/src/a.rs", "// as llama.cpp does\n"),
            0
        );
        assert_eq!(count(family_names, "crates/engine/tests/a.rs", named), 0);
        assert_eq!(
            count(family_names, "crates/model/src/spec/rope.rs", "Llama3 => llama3(),\n"),
            0
        );
        assert_eq!(
            count(family_names, "crates/model/src/spec/rope.rs", "\"llama\" => x,\n"),
            1
        );
    }

    #[test]
    fn dependencies_out_of_their_module_are_found() {
        assert_eq!(
            count(dependency_names, "crates/engine/src/a.rs", "use ureq::Agent;\n"),
            1
        );
        assert_eq!(
            count(dependency_names, "crates/hub/src/http.rs", "use ureq::Agent;\n"),
            0
        );
        assert_eq!(
            count(dependency_names, "crates/cpu/src/a.rs", "let x = half::f16::ZERO;\n"),
            1
        );
        assert_eq!(
            count(
                dependency_names,
                "crates/cpu/src/a.rs",
                "use crate::half::x; other_half::y();\n"
            ),
            0
        );
    }
}
