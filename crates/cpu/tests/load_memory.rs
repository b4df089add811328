//! Loading holds, beside the weights, what a thread needs for one panel, and not a whole matrix.
//!
//! Weights lie in memory that the system maps, which the counting allocator does not see: it counts all the rest.

#[path = "../../format/tests/hostile/counting.rs"]
mod counting;

use std::fs;

use counting::peak_bytes;
use goldcrest_cpu::{Cpu, CpuOptions};
use goldcrest_format::Checkpoint;
use goldcrest_model::backend::Backend;
use goldcrest_model::plan::Activations;
use goldcrest_model::{Plan, PlanOptions, read_spec};
use serde_json::{Map, Value, json};

const HIDDEN: usize = 512;
const INNER: usize = 2048;
const VOCABULARY: usize = 256;

/// Bytes that loading may hold for everything small: vectors, scratch for calls of one row, lists of matrices.
const SMALL_BYTES: usize = 128 << 10;

/// A folder with a model whose tensors, of f32, are all zero.
fn model(name: &str, config: &Value, tensors: &[(&str, &[usize])]) -> Checkpoint {
    let mut header = Map::new();
    let mut end = 0;
    for (tensor, shape) in tensors {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] });
        header.insert((*tensor).to_owned(), entry);
    }
    let header = Value::Object(header).to_string();
    let folder = std::env::temp_dir().join(format!("goldcrest-load-memory-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    file.resize(file.len() + end, 0);
    fs::write(folder.join("model.safetensors"), file).unwrap();
    let checkpoint = Checkpoint::open(&folder).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    checkpoint
}

/// What compiling the model's plan on one thread, which is this one, held beside the panels; and the bytes of all weights.
fn beside_weights(checkpoint: &Checkpoint) -> (usize, usize) {
    let spec = read_spec(checkpoint).unwrap();
    let options = PlanOptions {
        integer_types: Cpu::integer_types,
        activations: Activations::F32,
    };
    let plan = Plan::new(&spec, options);
    let cpu = Cpu::new(CpuOptions {
        threads: Some(1),
        max_rows: 1,
        ..CpuOptions::default()
    });
    let cpu = cpu.unwrap();
    let (program, peak) = peak_bytes(|| cpu.compile(plan, checkpoint));
    (peak, program.unwrap().weight_bytes())
}

#[test]
fn rows_are_read_into_room_for_one_panel() {
    let config = json!({
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": true,
    });
    let checkpoint = model(
        "rows",
        &config,
        &[
            ("model.embed_tokens.weight", &[VOCABULARY, HIDDEN]),
            ("model.norm.weight", &[HIDDEN]),
            ("model.layers.0.input_layernorm.weight", &[HIDDEN]),
            ("model.layers.0.post_attention_layernorm.weight", &[HIDDEN]),
            ("model.layers.0.self_attn.q_proj.weight", &[HIDDEN, HIDDEN]),
            ("model.layers.0.self_attn.k_proj.weight", &[HIDDEN, HIDDEN]),
            ("model.layers.0.self_attn.v_proj.weight", &[HIDDEN, HIDDEN]),
            ("model.layers.0.self_attn.o_proj.weight", &[HIDDEN, HIDDEN]),
            ("model.layers.0.mlp.gate_proj.weight", &[INNER, HIDDEN]),
            ("model.layers.0.mlp.up_proj.weight", &[INNER, HIDDEN]),
            ("model.layers.0.mlp.down_proj.weight", &[HIDDEN, INNER]),
        ],
    );
    let (peak, weights) = beside_weights(&checkpoint);
    let panel = 16 * INNER * 4;
    assert!(weights > 100 * panel, "{weights} bytes of weights");
    assert!(peak <= panel + SMALL_BYTES, "{peak} bytes beside the weights");
}

#[test]
fn columns_are_read_into_room_for_one_tile() {
    let config = json!({
        "model_type": "gpt2", "vocab_size": VOCABULARY, "n_positions": 64, "n_embd": HIDDEN, "n_layer": 1, "n_head": 4,
        "n_inner": INNER, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    });
    let checkpoint = model(
        "columns",
        &config,
        &[
            ("transformer.wte.weight", &[VOCABULARY, HIDDEN]),
            ("transformer.wpe.weight", &[64, HIDDEN]),
            ("transformer.ln_f.weight", &[HIDDEN]),
            ("transformer.ln_f.bias", &[HIDDEN]),
            ("transformer.h.0.ln_1.weight", &[HIDDEN]),
            ("transformer.h.0.ln_1.bias", &[HIDDEN]),
            ("transformer.h.0.ln_2.weight", &[HIDDEN]),
            ("transformer.h.0.ln_2.bias", &[HIDDEN]),
            ("transformer.h.0.attn.c_attn.weight", &[HIDDEN, 3 * HIDDEN]),
            ("transformer.h.0.attn.c_attn.bias", &[3 * HIDDEN]),
            ("transformer.h.0.attn.c_proj.weight", &[HIDDEN, HIDDEN]),
            ("transformer.h.0.attn.c_proj.bias", &[HIDDEN]),
            ("transformer.h.0.mlp.c_fc.weight", &[HIDDEN, INNER]),
            ("transformer.h.0.mlp.c_fc.bias", &[INNER]),
            ("transformer.h.0.mlp.c_proj.weight", &[INNER, HIDDEN]),
            ("transformer.h.0.mlp.c_proj.bias", &[HIDDEN]),
        ],
    );
    let (peak, weights) = beside_weights(&checkpoint);
    // The largest matrix is two tiles of 2 MiB.
    let tile = 2 << 20;
    assert!(weights > 5 * tile, "{weights} bytes of weights");
    assert!(peak <= tile + SMALL_BYTES, "{peak} bytes beside the weights");
}
