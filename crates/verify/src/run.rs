//! Feeds a case and compares.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use goldcrest_engine::{
    BatchError, Capture, CaptureError, CaptureRequest, Chunk, Engine, EngineOptions, FeedError, Interrupted, Op,
    OpOutput, OpenError, Probe, Session, SessionError, Span, Want, Watch,
};
use goldcrest_format::{Checkpoint, FormatError};
use serde::Serialize;

use super::case::{Case, CaseError, Routes};
use super::perturb::{PerturbError, perturb};

/// Largest difference of a residual, in standard deviations of the reference tensor.
const RESIDUAL_BOUND: f64 = 2e-4;

/// How to run a case.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens a chunk; `None`: the prompt whole.
    pub chunk: Option<usize>,
    /// The model in another file than the case's own checkpoint.
    pub model: Option<PathBuf>,
    /// A key of the configuration to change.
    pub perturb: Option<String>,
    /// How to compute.
    pub engine: EngineOptions,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            chunk: None,
            model: None,
            perturb: None,
            engine: EngineOptions::exact(),
        }
    }
}

/// Why a case could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    #[error(transparent)]
    Case(#[from] CaseError),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Perturb(#[from] PerturbError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Feed(#[from] FeedError),
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Another model's outputs.
    #[error("the case's logits have {expected} columns, the model's vocabulary has {found} tokens")]
    Vocabulary { expected: usize, found: usize },
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub case: String,
    /// Largest difference of a prompt's logit.
    pub logits_max_abs: f64,
    /// Largest difference of a logit while following the greedy ids.
    pub step_logits_max_abs: f64,
    /// The bound of both.
    pub bound: f64,
    /// `logits_max_abs` in units of the reference's own rounding noise.
    pub ratio_to_noise_floor: f64,
    /// Steps whose best id is not the reference's.
    pub wrong_greedy_steps: Vec<usize>,
    /// Boundaries that differ too much, first of them first.
    pub wrong_residuals: Vec<ResidualError>,
    /// Layers with experts whose choices or weights differ too much, counted among those layers.
    pub wrong_routes: Vec<usize>,
    /// FNV-1a (64 bits) of all logits, prompt and steps, as little-endian f32.
    pub logits_hash: String,
    pub passed: bool,
}

/// A residual stream that differs too much.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ResidualError {
    /// It enters this layer.
    pub layer: usize,
    /// Largest difference, in standard deviations.
    pub relative: f64,
}

/// Runs the case in `folder`.
///
/// # Errors
/// [`VerifyError`] if it cannot be run; a case that runs and differs is a [`Report`] with `passed` false.
pub fn verify(folder: &Path, options: &Options) -> Result<Report, VerifyError> {
    let case = Case::open(folder)?;
    let mut checkpoint = Checkpoint::open(options.model.as_deref().unwrap_or(folder))?;
    if let Some(key) = &options.perturb {
        perturb(checkpoint.config_mut(), key)?;
    }
    let engine = Engine::open(&checkpoint, options.engine)?;
    let vocabulary = engine.spec().vocabulary;
    let expected = case.logits.len() / case.file.prompt_ids.len().max(1);
    if vocabulary != expected {
        return Err(VerifyError::Vocabulary {
            expected,
            found: vocabulary,
        });
    }
    let outputs = run(&case, &engine, options.chunk)?;
    Ok(judge(&case, &outputs, vocabulary))
}

struct Outputs {
    logits: Vec<f32>,
    step_logits: Vec<f32>,
    residuals: Vec<Vec<f32>>,
    routes: Vec<Routes>,
}

fn run(case: &Case, engine: &Engine, chunk: Option<usize>) -> Result<Outputs, VerifyError> {
    let (prompt, greedy) = (&case.file.prompt_ids, &case.file.greedy_ids);
    let vocabulary = engine.spec().vocabulary;
    // A sequence's declared length decides rotations that depend on it: here the prompt's, as in the reference.
    let capacity = match case.file.cache_equals_recompute {
        true => prompt.len() + greedy.len(),
        false => prompt.len(),
    };
    let mut session = engine.session(capacity)?;
    let mut logits = vec![0.0; prompt.len() * vocabulary];
    let mut onlooker = Onlooker::new(engine, &case.file.sampled_positions)?;
    for ids in prompt.chunks(chunk.unwrap_or(prompt.len()).max(1)) {
        let start = session.position();
        let out = &mut logits[start * vocabulary..][..ids.len() * vocabulary];
        let watch = Watch {
            cancel: None,
            probe: Some(&mut onlooker),
        };
        session.feed_watched(
            Chunk {
                start,
                ids,
                want: Want::All,
            },
            out,
            watch,
        )?;
    }
    let step_logits = match case.file.cache_equals_recompute {
        true => steps(&mut session, &logits[(prompt.len() - 1) * vocabulary..], greedy)?,
        false => recomputed_steps(case, engine, chunk)?,
    };
    Ok(Outputs {
        logits,
        step_logits,
        residuals: onlooker.residuals(),
        routes: onlooker.routes.into_values().collect(),
    })
}

/// The logits of the prompt's last row, and of each greedy step after it.
fn steps(session: &mut Session, last: &[f32], greedy: &[u32]) -> Result<Vec<f32>, VerifyError> {
    let mut step_logits = last.to_vec();
    let mut row = vec![0.0; last.len()];
    for id in &greedy[..greedy.len() - 1] {
        let start = session.position();
        session.feed(
            Chunk {
                start,
                ids: &[*id],
                want: Want::Last,
            },
            &mut row,
        )?;
        step_logits.extend_from_slice(&row);
    }
    Ok(step_logits)
}

/// The same rows out of one sequence that was declared as long as it becomes.
fn recomputed_steps(case: &Case, engine: &Engine, chunk: Option<usize>) -> Result<Vec<f32>, VerifyError> {
    let greedy = &case.file.greedy_ids;
    let ids = [&case.file.prompt_ids[..], &greedy[..greedy.len() - 1]].concat();
    let vocabulary = engine.spec().vocabulary;
    let mut session = engine.session(ids.len())?;
    let mut logits = vec![0.0; ids.len() * vocabulary];
    for ids in ids.chunks(chunk.unwrap_or(ids.len()).max(1)) {
        let start = session.position();
        let out = &mut logits[start * vocabulary..][..ids.len() * vocabulary];
        session.feed(
            Chunk {
                start,
                ids,
                want: Want::All,
            },
            out,
        )?;
    }
    Ok(logits.split_off((case.file.prompt_ids.len() - 1) * vocabulary))
}

/// Keeps the residual stream at the sampled positions, and the routers' choices at all.
struct Onlooker {
    residuals: Capture,
    /// By the index of the op that chose.
    routes: BTreeMap<usize, Routes>,
}

impl Onlooker {
    fn new(engine: &Engine, positions: &[usize]) -> Result<Self, CaptureError> {
        let all = CaptureRequest {
            boundaries: (0..=engine.spec().layers.len()).collect(),
            positions: positions.to_vec(),
        };
        Ok(Onlooker {
            residuals: Capture::new(engine, vec![all])?,
            routes: BTreeMap::new(),
        })
    }

    /// By boundary: `[positions, hidden]` each.
    fn residuals(&self) -> Vec<Vec<f32>> {
        let boundaries = self.residuals.feeds().iter().flat_map(|captured| {
            let boundaries = captured.request().boundaries.iter();
            boundaries.filter_map(|boundary| captured.residual(*boundary))
        });
        boundaries.map(<[f32]>::to_vec).collect()
    }
}

impl Probe for Onlooker {
    fn before_call(&mut self, spans: &[Span]) {
        self.residuals.before_call(spans);
    }

    fn after_op(&mut self, index: usize, op: &Op, output: OpOutput) -> Result<(), Interrupted> {
        if let OpOutput::Routes { ids, weights } = output {
            let routes = self.routes.entry(index).or_default();
            routes.ids.extend(ids.iter().map(|id| *id as u32));
            routes.weights.extend_from_slice(weights);
        }
        self.residuals.after_op(index, op, output)
    }
}

fn judge(case: &Case, outputs: &Outputs, vocabulary: usize) -> Report {
    let bound = case.file.tolerance.float32_max_abs;
    let logits_max_abs = max_difference(&case.logits, &outputs.logits);
    let step_logits_max_abs = max_difference(&case.step_logits, &outputs.step_logits);
    let rows = |logits: &'_ [f32]| logits.chunks_exact(vocabulary).map(best).collect::<Vec<_>>();
    let steps = rows(&outputs.step_logits)
        .into_iter()
        .zip(rows(&case.step_logits))
        .enumerate();
    let wrong_greedy_steps: Vec<usize> = steps
        .filter(|(_, (found, wanted))| found != wanted)
        .map(|(step, _)| step)
        .collect();
    let wrong_residuals: Vec<ResidualError> = case
        .residuals
        .iter()
        .zip(&outputs.residuals)
        .enumerate()
        .map(|(layer, (want, got))| ResidualError {
            layer,
            relative: max_difference(want, got) / deviation(want),
        })
        .filter(|error| error.relative > RESIDUAL_BOUND || error.relative.is_nan())
        .collect();
    let wrong_routes = wrong_routes(&case.routes, &outputs.routes);
    let passed = logits_max_abs <= bound
        && step_logits_max_abs <= bound
        && wrong_greedy_steps.is_empty()
        && wrong_residuals.is_empty()
        && wrong_routes.is_empty()
        && case.residuals.len() == outputs.residuals.len();
    Report {
        case: case.file.case.clone(),
        logits_max_abs,
        step_logits_max_abs,
        bound,
        ratio_to_noise_floor: logits_max_abs / case.file.noise_floor.prompt,
        wrong_greedy_steps,
        wrong_residuals,
        wrong_routes,
        logits_hash: hash(&[&outputs.logits, &outputs.step_logits]),
        passed,
    }
}

/// Largest difference of a router's weight, as a share of the largest weight of its layer.
const ROUTE_WEIGHT_BOUND: f64 = 2e-4;

/// Layers whose choices are others, or whose weights differ too much.
fn wrong_routes(want: &[Routes], got: &[Routes]) -> Vec<usize> {
    let alike = |want: &Routes, got: &Routes| {
        let largest = want
            .weights
            .iter()
            .fold(0.0, |max: f64, weight| max.max(f64::from(*weight).abs()));
        want.ids == got.ids && max_difference(&want.weights, &got.weights) <= ROUTE_WEIGHT_BOUND * largest
    };
    (0..want.len().max(got.len()))
        .filter(|&layer| !matches!((want.get(layer), got.get(layer)), (Some(want), Some(got)) if alike(want, got)))
        .collect()
}

/// Largest absolute difference; NaN or another length counts as infinite.
fn max_difference(want: &[f32], got: &[f32]) -> f64 {
    if want.len() != got.len() {
        return f64::INFINITY;
    }
    let difference = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).abs();
    let differences = want.iter().zip(got).map(difference);
    differences.fold(0.0, |max, d| if d.is_nan() { f64::INFINITY } else { d.max(max) })
}

fn deviation(values: &[f32]) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    (values
        .iter()
        .map(|x| (f64::from(*x) - mean) * (f64::from(*x) - mean))
        .sum::<f64>()
        / count)
        .sqrt()
}

fn best(row: &[f32]) -> usize {
    (0..row.len())
        .reduce(|best, i| if row[i] > row[best] { i } else { best })
        .unwrap_or(0)
}

/// FNV-1a of 64 bits over little-endian f32.
pub(crate) fn hash(slices: &[&[f32]]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in slices
        .iter()
        .flat_map(|slice| slice.iter())
        .flat_map(|x| x.to_le_bytes())
    {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}
