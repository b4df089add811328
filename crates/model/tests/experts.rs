//! Mixtures of experts that cannot be: every one is refused with what is wrong, before any memory is taken for it.

#[path = "../../../tests/support/goldens.rs"]
mod goldens;

use std::path::{Path, PathBuf};

use goldcrest_format::{Checkpoint, Config};
use goldcrest_model::{SpecError, read_spec};
use goldens::golden_folder;
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
