//! The table of families in the README is what this build reads and what the golden cases verify.

#[path = "../../../tests/support/goldens.rs"]
mod goldens;

use std::fmt::Write;

use goldcrest_format::Checkpoint;
use goldcrest_model::families::ALL;
use goldcrest_model::read_spec;
use goldens::{faithful_gguf_path, golden_cases, golden_folder, tests_folder};

/// The table's first line.
const HEAD: &str = "| family | `model_type` | GGUF | verified from safetensors | from GGUF |\n|---|---|---|---|---|\n";

fn table() -> String {
    let cases: Vec<(String, &str)> = golden_cases()
        .into_iter()
        .map(|case| {
            let spec = read_spec(&Checkpoint::open(&golden_folder(&case)).unwrap()).unwrap();
            (case, spec.family)
        })
        .collect();
    let mut table = HEAD.to_owned();
    for family in ALL {
        let of_family = cases
            .iter()
            .filter(|(_, of)| *of == family.name)
            .map(|(case, _)| case.as_str());
        let of_family: Vec<&str> = of_family.collect();
        let from_gguf = of_family.iter().filter(|case| faithful_gguf_path(case).is_some());
        let from_gguf: Vec<&str> = from_gguf.copied().collect();
        writeln!(
            table,
            "| {} | {} | {} | {} | {} |",
            family.name,
            family.hf.join(", "),
            family.gguf.join(", "),
            of_family.join(", "),
            match from_gguf == of_family {
                true if from_gguf.is_empty() => String::new(),
                true => "the same".to_owned(),
                false => from_gguf.join(", "),
            }
        )
        .unwrap();
    }
    table
}

#[test]
fn the_readme_lists_what_is_read_and_verified() {
    let readme = std::fs::read_to_string(tests_folder().join("../README.md")).unwrap();
    let table = table();
    assert!(
        readme.contains(&table),
        "the README's table of families should be:\n{table}"
    );
}
