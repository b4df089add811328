//! The plan of every golden case, from each file that describes it. A changed snapshot is a changed model.

#[path = "../../../tests/support/goldens.rs"]
mod goldens;

use std::path::Path;

use goldcrest_format::Checkpoint;
use goldcrest_model::plan::Activations;
use goldcrest_model::{ModelSpec, Plan, PlanOptions, read_spec};
use goldens::{faithful_gguf_path, golden_cases, golden_folder};

/// One case a family, with the snapshot of its plan.
const SNAPSHOTS: &[&str] = &[
    "llama3",
    "llama_bias_linear",
    "llama_yarn",
    "mistral_swa",
    "ministral",
    "qwen2_swa",
    "qwen3",
    "smollm3",
    "gemma3",
];

fn spec(path: &Path) -> ModelSpec {
    read_spec(&Checkpoint::open(path).unwrap()).unwrap()
}

fn plan(spec: &ModelSpec) -> Plan {
    Plan::new(
        spec,
        PlanOptions {
            activations: Activations::Q8,
            integer_types: |dtype| dtype.block_elements() > 1,
        },
    )
}

#[test]
fn plans_of_each_family() {
    for case in SNAPSHOTS {
        let plan = plan(&spec(&golden_folder(case)));
        insta::assert_snapshot!(*case, plan.to_string());
    }
}

#[test]
fn both_spellings_of_a_config_mean_the_same() {
    for case in golden_cases() {
        let folder = golden_folder(&case);
        let mut checkpoint = Checkpoint::open(&folder).unwrap();
        let published = read_spec(&checkpoint).unwrap();
        let v5 = std::fs::read(folder.join("config.v5.json")).unwrap();
        *checkpoint.config_mut() = goldcrest_format::Config::Hf(serde_json::from_slice(&v5).unwrap());
        assert_eq!(read_spec(&checkpoint).unwrap(), published, "{case}");
    }
}

/// What a plan says beside the names and types of tensors and where constants were folded.
fn shape_of(plan: &Plan) -> (Vec<String>, Vec<[usize; 2]>) {
    let ropes = plan.ropes.iter().map(|rope| {
        let divisors = vec![1.0; rope.rotary / 2];
        format!("{:?}", rope.frequencies(&divisors))
    });
    let kvs = plan.kvs.iter().map(|kv| kv.to_string());
    let ops = plan.ops.iter().map(|op| format!("{op:?}"));
    let matrices = plan
        .matrices
        .iter()
        .map(|matrix| [matrix.outputs(), matrix.cols])
        .collect();
    (ropes.chain(kvs).chain(ops).collect(), matrices)
}

#[test]
fn gguf_means_what_the_checkpoint_means() {
    let mut compared = 0;
    for case in golden_cases() {
        let Some(gguf) = faithful_gguf_path(&case) else {
            continue;
        };
        let from_hf = plan(&spec(&golden_folder(&case)));
        let from_gguf = plan(&spec(&gguf));
        // Llama 3's frequencies come as divisors in a tensor, whose values the spec does not hold.
        let (mut hf, mut gguf) = (shape_of(&from_hf), shape_of(&from_gguf));
        if case == "llama3" {
            hf.0.remove(0);
            gguf.0.remove(0);
        }
        assert_eq!(hf, gguf, "{case}");
        compared += 1;
    }
    assert!(compared >= 10, "only {compared} GGUF files compared");
}
