//! Rows of several sequences in one call: each sequence is left where it would be alone, to the bit.

mod support;

use goldcrest_cpu::{Cpu, CpuOptions, Program, State};
use goldcrest_model::backend::{Backend, Batch, Part};
use goldcrest_model::plan::Activations;
use goldcrest_model::{Plan, PlanOptions, read_spec};
use support::{Random, bits, golden};

/// Models of every kind of state: keys and values, all or in a window; a selective scan; matrices of heads, alone, beside attention, and
/// in turns with it.
const CASES: &[&str] = &[
    "llama3",
    "gemma3",
    "mamba",
    "mamba2",
    "falcon_h1",
    "granitemoehybrid",
    "nemotron_h",
];

const LENGTHS: [usize; 3] = [21, 9, 14];

/// Calls, each with parts: a sequence, and how many of its tokens. Together they feed [`LENGTHS`].
const CALLS: &[&[(usize, usize)]] = &[
    &[(0, 5), (1, 1), (2, 7)],
    &[(2, 1), (0, 3)],
    &[(1, 8), (2, 6), (0, 1)],
    &[(0, 12)],
];

struct Model {
    cpu: Cpu,
    program: Program,
}

impl Model {
    fn new(case: &str, threads: usize) -> Model {
        let checkpoint = golden(case);
        let cpu = Cpu::new(CpuOptions {
            threads: Some(threads),
            ..CpuOptions::default()
        });
        let cpu = cpu.unwrap();
        let options = PlanOptions {
            activations: Activations::Q8,
            integer_types: Cpu::integer_types,
        };
        let plan = Plan::new(&read_spec(&checkpoint).unwrap(), options);
        let program = cpu.compile(plan, &checkpoint).unwrap();
        Model { cpu, program }
    }

    fn states(&self) -> Vec<State> {
        LENGTHS
            .iter()
            .map(|&length| self.cpu.state(&self.program, length).unwrap())
            .collect()
    }

    /// The logits of all rows, part by part.
    fn forward(&self, parts: &[&[u32]], states: &mut [&mut State]) -> Vec<Vec<u32>> {
        let vocabulary = self.program.plan().vocabulary;
        let wanted: Vec<Vec<usize>> = parts.iter().map(|ids| (0..ids.len()).collect()).collect();
        let parts: Vec<Part> = parts
            .iter()
            .zip(&wanted)
            .map(|(ids, wanted)| Part {
                ids,
                wanted,
                steering: None,
            })
            .collect();
        let batch = Batch { parts: &parts };
        let mut logits = vec![f32::NAN; batch.rows() * vocabulary];
        self.cpu
            .forward(&self.program, batch, states, &mut logits, None)
            .unwrap();
        let mut rest = &logits[..];
        parts
            .iter()
            .map(|part| {
                let (own, others) = rest.split_at(part.ids.len() * vocabulary);
                rest = others;
                bits(own)
            })
            .collect()
    }

    fn visible(&self, state: &State) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.cpu.visible(state, &mut bytes);
        bytes
    }
}

#[test]
fn sequences_of_a_call_do_not_meet() {
    for case in CASES {
        let alone = Model::new(case, 1);
        let mut random = Random(7);
        let ids = LENGTHS.map(|length| random.ids(length, alone.program.plan().vocabulary));
        let mut expected = alone.states();
        let logits: Vec<Vec<u32>> = ids
            .iter()
            .zip(&mut expected)
            .flat_map(|(ids, state)| alone.forward(&[ids], &mut [state]))
            .collect();
        for threads in 1..=3 {
            let model = Model::new(case, threads);
            let mut states = model.states();
            let mut found = vec![Vec::new(); LENGTHS.len()];
            for call in CALLS {
                let mut free: Vec<Option<&mut State>> = states.iter_mut().map(Some).collect();
                let mut parts = Vec::new();
                let mut taken = Vec::new();
                for &(sequence, count) in *call {
                    let state = free[sequence].take().unwrap();
                    parts.push(&ids[sequence][model.cpu.length(state)..][..count]);
                    taken.push(state);
                }
                for (&(sequence, _), rows) in call.iter().zip(model.forward(&parts, &mut taken)) {
                    found[sequence].extend(rows);
                }
            }
            assert_eq!(found, logits, "{case} on {threads} threads");
            for (state, expected) in states.iter().zip(&expected) {
                assert_eq!(
                    model.visible(state),
                    alone.visible(expected),
                    "{case} on {threads} threads"
                );
            }
        }
    }
}
