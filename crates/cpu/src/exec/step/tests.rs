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
    let checkpoint = Checkpoint::open(&goldens::golden_folder(case)).unwrap();
    let spec = read_spec(&checkpoint).unwrap();
    let options = PlanOptions {
        activations: Activations::F32,
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
        let ops: Vec<usize> = steps(&program.plan).iter().flat_map(Step::ops).collect();
        assert!(ops.iter().copied().eq(0..program.plan.ops.len()), "{case}");
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
    let regions = steps(&program.plan)
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

/// Rows in one call and one by one, with two threads: the bits are those of ops that wait for each other.
#[test]
fn steps_give_the_bits_of_their_ops_one_by_one() {
    let options = CpuOptions {
        threads: Some(2),
        kv: KvElement::F32,
        ..CpuOptions::default()
    };
    let cpu = Cpu::new(options).unwrap();
    for case in goldens::golden_cases() {
        let together = compile(&cpu, &case);
        let mut program = compile(&cpu, &case);
        program.steps = apart(&program.plan);
        for chunk in [1, 19] {
            let [expected, found] = [&program, &together].map(|program| logits(&cpu, program, chunk));
            assert_eq!(expected, found, "{case} in chunks of {chunk}");
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
