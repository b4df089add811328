use std::path::Path;

use goldcrest_format::Checkpoint;
use goldcrest_kernels::KvElement;
use goldcrest_model::backend::{Backend, Batch, Part};
use goldcrest_model::plan::{Activations, Op, Plan};
use goldcrest_model::{PlanOptions, read_spec};

use super::{Products, Step, steps};
use crate::{Cpu, CpuOptions, Program};

#[path = "../../../../../tests/support/goldens.rs"]
mod goldens;

fn compile(cpu: &Cpu, case: &str) -> Program {
    compile_file(cpu, &goldens::golden_folder(case), Activations::F32)
}

fn compile_file(cpu: &Cpu, path: &Path, activations: Activations) -> Program {
    let checkpoint = Checkpoint::open(path).unwrap();
    let spec = read_spec(&checkpoint).unwrap();
    let options = PlanOptions {
        activations,
        integer_types: Cpu::integer_types,
    };
    cpu.compile(Plan::new(&spec, options), &checkpoint).unwrap()
}

/// Every op by itself.
fn apart(plan: &Plan) -> Vec<Step> {
    let step = |index| match Products::of(plan, index..index + 1) {
        Some(products) => Step::Products(products),
        None => Step::Op(index),
    };
    (0..plan.ops.len()).map(step).collect()
}

#[test]
fn steps_hold_every_op_once_and_in_order() {
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    for case in goldens::golden_cases() {
        let program = compile(&cpu, &case);
        for most_bytes in [None, Some(1), Some(20_000)] {
            let ops = steps(&program.plan, most_bytes);
            let ops = ops.iter().flat_map(Step::ops);
            assert!(
                ops.eq(0..program.plan.ops.len()),
                "{case} in steps of {most_bytes:?} bytes"
            );
        }
    }
}

#[test]
fn a_dense_layer_is_five_regions() {
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let program = compile(&cpu, "llama3");
    let boundaries: Vec<usize> = (0..program.plan.ops.len())
        .filter(|&index| matches!(program.plan.ops[index], Op::Boundary { .. }))
        .collect();
    let (first, last) = (boundaries[0], boundaries[1]);
    let regions = steps(&program.plan, None)
        .iter()
        .filter(|step| (first..last).contains(&step.ops().start))
        .filter(|step| match step {
            Step::Products(_) => true,
            Step::Op(index) => matches!(program.plan.ops[*index], Op::Attend { .. }),
        })
        .count();
    assert_eq!(
        regions, 5,
        "queries, keys and values; attention; its output; gate and up; down"
    );
}

#[test]
fn norms_are_part_of_the_step_that_packs_their_rows() {
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let program = compile(&cpu, "llama3");
    let norms = program.plan.ops.iter().filter(|op| matches!(op, Op::Norm { .. }));
    let steps = steps(&program.plan, None);
    let fused = steps
        .iter()
        .filter(|step| matches!(step, Step::Products(Products { norm: Some(_), .. })));
    assert_eq!(fused.count(), norms.count(), "two a layer, and the last");
}

fn two_threads() -> Cpu {
    let options = CpuOptions {
        threads: Some(2),
        kv: KvElement::F32,
        ..CpuOptions::default()
    };
    Cpu::new(options).unwrap()
}

/// Rows in one call and one by one, with two threads: the bits are those of ops that wait for each other.
#[test]
fn steps_give_the_bits_of_their_ops_one_by_one() {
    let cpu = two_threads();
    for case in goldens::golden_cases() {
        compare_with_ops(&cpu, compile(&cpu, &case), &case);
    }
}

/// The same with activations of 8 bits, which a published model with quantised weights has.
#[test]
fn steps_of_quantised_products_give_the_bits_of_their_ops() {
    let name = "gemma-3-270m-q4_k_m.gguf";
    let path = std::env::var_os("GOLDCREST_FIXTURES").map(|folder| Path::new(&folder).join(name));
    let Some(path) = path.filter(|path| path.exists()) else {
        println!("SKIPPED: GOLDCREST_FIXTURES names no folder with {name}; cargo xtask test does");
        return;
    };
    let cpu = two_threads();
    compare_with_ops(&cpu, compile_file(&cpu, &path, Activations::Q8), name);
}

fn compare_with_ops(cpu: &Cpu, mut program: Program, name: &str) {
    for chunk in [1, 19] {
        program.steps = steps(&program.plan, None);
        let found = logits(cpu, &program, chunk);
        program.steps = apart(&program.plan);
        assert!(found == logits(cpu, &program, chunk), "{name} in chunks of {chunk}");
        // One panel of each matrix at a time, and several.
        for most_bytes in [1, 20_000] {
            program.steps = steps(&program.plan, Some(most_bytes));
            assert!(
                found == logits(cpu, &program, chunk),
                "{name} in chunks of {chunk}, steps of {most_bytes} bytes"
            );
        }
    }
}

/// The bits of the logits of 19 tokens.
fn logits(cpu: &Cpu, program: &Program, chunk: usize) -> Vec<u32> {
    let ids: Vec<u32> = (0..19).map(|i| (i * 37 + 5) % program.plan.vocabulary as u32).collect();
    let mut state = cpu.state(program, ids.len()).unwrap();
    let mut all = Vec::new();
    for ids in ids.chunks(chunk) {
        let wanted: Vec<usize> = (0..ids.len()).collect();
        let parts = [Part {
            ids,
            wanted: &wanted,
            steering: None,
        }];
        let mut logits = vec![0.0; ids.len() * program.plan.vocabulary];
        cpu.forward(program, Batch { parts: &parts }, &mut [&mut state], &mut logits, None)
            .unwrap();
        all.extend(logits.iter().map(|x| x.to_bits()));
    }
    all
}
