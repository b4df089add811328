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
    "afmoe",
    "apertus",
    "arcee",
    "bamba",
    "bloom",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v3_fp8",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "exaone_moe",
    "falcon",
    "falcon_h1",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma4_moe",
    "gemma4_ple",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "granitemoeshared",
    "hunyuan_dense",
    "hunyuan_moe",
    "hy_v3",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "llama3",
    "llama4",
    "llama_bias_linear",
    "llama_yarn",
    "longcat_flash",
    "mamba",
    "mamba2",
    "mimo_v2_flash",
    "minicpm3",
    "minimax",
    "minimax_m2",
    "ministral",
    "ministral3",
    "mistral4",
    "mistral_swa",
    "mixtral",
    "nemotron",
    "nemotron_h",
    "olmo2",
    "olmo3",
    "olmo_hybrid",
    "olmoe",
    "phi",
    "phi3_longrope_long",
    "phimoe",
    "qwen2_moe",
    "qwen2_swa",
    "qwen3",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
];

/// Cases that mean the same from both files by different plans.
const OTHER_PLAN_FROM_GGUF: &[&str] = &[
    "falcon_h1",    // the converter multiplies the weights by the factors of the configuration
    "mamba2",       // limits of time steps that are never reached have no key
    "qwen3_5_text", // the converter reorders value heads, which then take key heads in turns
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

/// The frequencies of a plan's rotations, in short and in long sequences; `None` if some come out of a tensor, whose values a spec does not
/// hold.
fn frequencies(plan: &Plan) -> Option<Vec<(Vec<f32>, f32)>> {
    let lengths = [16, 1 << 20];
    let each = plan.ropes.iter().flat_map(|rope| lengths.map(|length| (rope, length)));
    each.map(|(rope, length)| rope.divisors(length).is_none().then(|| rope.frequencies(length, &[])))
        .collect()
}

/// What a plan says beside the names and types of tensors and the frequencies.
fn shape_of(plan: &Plan) -> (Vec<String>, Vec<[usize; 2]>) {
    let kvs = plan.kvs.iter().map(|kv| kv.to_string());
    let ops = plan.ops.iter().map(|op| format!("{op:?}"));
    let matrices = plan
        .matrices
        .iter()
        .map(|matrix| [matrix.outputs(), matrix.cols])
        .collect();
    (kvs.chain(ops).collect(), matrices)
}

#[test]
fn gguf_means_what_the_checkpoint_means() {
    let mut compared = 0;
    for case in golden_cases() {
        let gguf = faithful_gguf_path(&case).filter(|_| !OTHER_PLAN_FROM_GGUF.contains(&case.as_str()));
        let Some(gguf) = gguf else {
            continue;
        };
        let from_hf = plan(&spec(&golden_folder(&case)));
        let from_gguf = plan(&spec(&gguf));
        assert_eq!(shape_of(&from_hf), shape_of(&from_gguf), "{case}");
        if let (Some(hf), Some(gguf)) = (frequencies(&from_hf), frequencies(&from_gguf)) {
            assert_eq!(hf.len(), gguf.len(), "{case}");
            for ((hf, hf_factor), (gguf, gguf_factor)) in hf.iter().zip(&gguf) {
                let pairs = hf.iter().chain([hf_factor]).zip(gguf.iter().chain([gguf_factor]));
                // Bases and factors are f32 in the file.
                let alike = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * a.abs();
                assert!(pairs.into_iter().all(alike), "{case}: {hf:?} {gguf:?}");
            }
        }
        compared += 1;
    }
    assert!(compared >= 10, "only {compared} GGUF files compared");
}
