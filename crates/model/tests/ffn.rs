//! Feed-forward blocks and mixtures of experts that cannot be: every one is refused with what is wrong, before any memory is taken for it.

#[path = "../../../tests/support/goldens.rs"]
mod goldens;

use std::path::{Path, PathBuf};

use goldcrest_format::{Checkpoint, Config};
use goldcrest_model::{SpecError, read_spec};
use goldens::{golden_folder, golden_gguf_path};
use serde_json::{Value, json};

/// What is wrong with a golden case in whose configuration `key` is `value`.
fn configured(case: &str, key: &str, value: Value) -> SpecError {
    let mut checkpoint = Checkpoint::open(&golden_folder(case)).unwrap();
    let Config::Hf(config) = checkpoint.config_mut() else {
        panic!("{case} is a folder")
    };
    config.insert(key.into(), value);
    read_spec(&checkpoint).unwrap_err()
}

/// The golden case with another shape of one tensor, whose data is cut or filled with zeros to fit.
fn reshaped(case: &str, tensor: &str, shape: &[usize]) -> PathBuf {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    let name = format!("{case}-{tensor}-{}", sizes.join("x"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(golden_folder(case).join("config.json"), folder.join("config.json")).unwrap();
    let file = std::fs::read(golden_folder(case).join("model.safetensors")).unwrap();
    let (length, rest) = file.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let mut header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    header.remove("__metadata__");
    assert!(header.contains_key(tensor), "{case} has no {tensor}");
    let mut written = Vec::new();
    for (name, entry) in &mut header {
        let [from, to] = [0, 1].map(|i| entry["data_offsets"][i].as_u64().unwrap() as usize);
        let mut bytes = data[from..to].to_vec();
        if name == tensor {
            let elements: u64 = entry["shape"]
                .as_array()
                .unwrap()
                .iter()
                .map(|n| n.as_u64().unwrap())
                .product();
            let each = bytes.len() / elements as usize;
            bytes.resize(shape.iter().product::<usize>() * each, 0);
            entry["shape"] = json!(shape);
        }
        entry["data_offsets"] = json!([written.len(), written.len() + bytes.len()]);
        written.extend(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &written].concat();
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    folder
}

/// The error of a golden case's folder or GGUF file whose tensors with names that end in `end` are gone: they bear names, as long, of
/// buffers that every model does without.
fn read_without(case: &str, gguf: bool, end: &str) -> SpecError {
    let (path, name) = match gguf {
        true => (golden_gguf_path(case).unwrap(), "model.gguf"),
        false => (golden_folder(case), "model.safetensors"),
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{case}-{gguf}-without-{end}"));
    std::fs::create_dir_all(&folder).unwrap();
    let file = match gguf {
        true => path.clone(),
        false => {
            std::fs::copy(path.join("config.json"), folder.join("config.json")).unwrap();
            path.join(name)
        }
    };
    let mut bytes = std::fs::read(file).unwrap();
    let mut hidden = 0;
    for tensor in Checkpoint::open(&path).unwrap().tensors() {
        if tensor.name.ends_with(end) {
            let length = tensor.name.len();
            // In its file, a name stands after its length or between quotes.
            let written = match gguf {
                true => [&(length as u64).to_le_bytes(), tensor.name.as_bytes()].concat(),
                false => format!("\"{}\"", tensor.name).into_bytes(),
            };
            let mut places = bytes.windows(written.len());
            let at = places.position(|place| place == written).unwrap() + if gguf { 8 } else { 1 };
            let other = format!("{hidden:0>width$}.slope_rate", width = length - ".slope_rate".len());
            bytes[at..at + length].copy_from_slice(other.as_bytes());
            hidden += 1;
        }
    }
    assert!(hidden > 0, "{case} has no {end}");
    std::fs::write(folder.join(name), bytes).unwrap();
    let opened = if gguf { folder.join(name) } else { folder };
    match read_spec(&Checkpoint::open(&opened).unwrap()) {
        Ok(_) => panic!("{case} is read without {end}"),
        Err(error) => error,
    }
}

/// The shapes that the golden case's tensor has and should have, once it is [`reshaped`].
fn bad_shape(case: &str, tensor: &str, shape: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let checkpoint = Checkpoint::open(&reshaped(case, tensor, shape)).unwrap();
    match read_spec(&checkpoint).unwrap_err() {
        SpecError::BadShape {
            tensor: named,
            found,
            expected,
        } => {
            assert_eq!(named, tensor);
            (found, expected)
        }
        other => panic!("{case}, {tensor} of {shape:?}: {other}"),
    }
}

#[test]
fn a_router_chooses_some_of_its_experts() {
    for (case, key, value) in [
        ("qwen3_moe", "num_experts", json!(0)),
        ("qwen3_moe", "num_experts_per_tok", json!(0)),
        ("qwen3_moe", "num_experts_per_tok", json!(9)),
        ("hunyuan_moe", "moe_topk", json!([3, 9])),
        ("hunyuan_moe", "moe_topk", json!([3])),
        ("gpt_oss", "num_local_experts", json!(-1)),
        ("gpt_oss", "num_local_experts", json!(1_u64 << 40)),
    ] {
        let error = configured(case, key, value.clone());
        let SpecError::BadValue { key: named, .. } = &error else {
            panic!("{case} with {key} {value}: {error}")
        };
        assert!(named.contains(key), "{error}");
    }
    assert!(matches!(
        configured("qwen3_moe", "num_experts", json!(4)),
        SpecError::BadShape { .. }
    ));
}

#[test]
fn groups_are_equal_and_hold_the_choice() {
    // 16 experts, of which 4 are chosen, by the best two of each group.
    for (key, value) in [
        ("n_group", 3),
        ("n_group", 16),
        ("n_group", 0),
        ("n_group", 8),
        ("topk_group", 2),
        ("topk_group", 0),
    ] {
        let error = configured("dots1", key, json!(value));
        assert!(matches!(error, SpecError::BadValue { .. }), "{key} {value}: {error}");
    }
}

#[test]
fn an_unknown_scoring_is_refused() {
    let error = configured("cohere2_moe", "expert_selection_fn", json!("argmax"));
    assert!(matches!(error, SpecError::Unsupported { .. }), "{error}");
}

#[test]
fn tensors_of_all_experts_have_the_shape_of_all_experts() {
    let columns = "model.layers.1.mlp.experts.gate_up_proj";
    // Transposed, with the experts in another dimension, an expert short, a flat tensor, empty.
    for shape in [
        &[6, 32, 64][..],
        &[12, 64, 16],
        &[5, 64, 32],
        &[12288],
        &[6, 0, 32],
        &[6, 64, 0],
    ] {
        let (found, expected) = bad_shape("gpt_oss", columns, shape);
        assert_eq!(found, shape);
        assert_ne!(expected, shape);
    }
    let rows = "model.layers.1.block_sparse_moe.input_linear.weight";
    for shape in [&[8, 64, 32][..], &[16, 16, 64], &[7, 32, 64], &[256, 64]] {
        let (found, expected) = bad_shape("granitemoe", rows, shape);
        assert_eq!(found, shape);
        assert_ne!(expected, shape);
    }
    let blocks = "model.layers.1.mlp.experts.down_proj_blocks";
    for shape in [&[4, 64, 1, 32][..], &[4, 64, 2, 8], &[2, 128, 2, 16], &[4, 64, 32]] {
        assert_eq!(
            bad_shape("gpt_oss_mxfp4", blocks, shape),
            (shape.to_vec(), vec![4, 64, 2, 16])
        );
    }
    let scales = "model.layers.1.mlp.experts.down_proj_scales";
    assert_eq!(
        bad_shape("gpt_oss_mxfp4", scales, &[4, 2, 64]),
        (vec![4, 2, 64], vec![4, 64, 2])
    );
}

#[test]
fn experts_of_one_layer_are_alike_and_have_a_width() {
    let up = |expert: usize| format!("model.layers.1.mlp.experts.{expert}.up_proj.weight");
    assert_eq!(bad_shape("qwen3_moe", &up(5), &[24, 64]), (vec![24, 64], vec![16, 64]));
    assert_eq!(bad_shape("qwen3_moe", &up(5), &[0, 64]), (vec![0, 64], vec![16, 64]));
}

/// Cases, whether as GGUF, with the end of the names of their gates and the tensor that is named as missing without them.
const GATES: &[(&str, bool, &str, &str)] = &[
    (
        "llama3",
        false,
        ".gate_proj.weight",
        "model.layers.0.mlp.gate_proj.weight",
    ),
    ("llama3", true, ".ffn_gate.weight", "blk.0.ffn_gate.weight"),
    (
        "gemma4_moe",
        false,
        ".mlp.gate_proj.weight",
        "model.language_model.layers.0.mlp.gate_proj.weight",
    ),
    (
        "mixtral",
        false,
        ".w1.weight",
        "model.layers.0.block_sparse_moe.experts.0.w1.weight",
    ),
    ("mixtral", true, ".ffn_gate_exps.weight", "blk.0.ffn_gate_exps.weight"),
    (
        "qwen2_moe",
        false,
        ".shared_expert.gate_proj.weight",
        "model.layers.3.mlp.shared_expert.gate_proj.weight",
    ),
    (
        "deepseek_v3",
        true,
        ".ffn_gate_shexp.weight",
        "blk.1.ffn_gate_shexp.weight",
    ),
    (
        "gpt_oss",
        false,
        ".gate_up_proj",
        "model.layers.0.mlp.experts.gate_up_proj",
    ),
    ("gpt_oss", true, ".ffn_gate_exps.weight", "blk.0.ffn_gate_exps.weight"),
    (
        "gpt_oss_mxfp4",
        false,
        ".gate_up_proj_blocks",
        "model.layers.0.mlp.experts.gate_up_proj",
    ),
    (
        "granitemoe",
        false,
        ".input_linear.weight",
        "model.layers.0.block_sparse_moe.input_linear",
    ),
];

#[test]
fn a_gate_is_never_left_out() {
    for &(case, gguf, end, missing) in GATES {
        match read_without(case, gguf, end) {
            SpecError::MissingTensor { tensor } => assert_eq!(tensor, missing),
            other => panic!("{case} without {end}: {other}"),
        }
    }
}

#[test]
fn a_matrix_of_gates_and_ups_holds_both() {
    let tensor = "model.layers.0.mlp.gate_up_proj.weight";
    let (found, expected) = bad_shape("phi3_longrope_long", tensor, &[64, 64]);
    assert_eq!((found, expected), (vec![64, 64], vec![128, 64]));
}
