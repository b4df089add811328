//! What is written is what was asked for, and a model that runs. Models with a tokenizer need the fixtures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use goldcrest_engine::{
    Chunk, Engine, EngineOptions, Fit, FitError, Interrupted, Op, OpOutput, Probe, Sequences, StreamOptions, Streamed,
    Want, Watch,
};
use goldcrest_format::blocks::decode;
use goldcrest_format::gguf::{Metadata, Value};
use goldcrest_format::{Checkpoint, Config, DType};

use super::mix::Mix;
use super::random::Random;
use super::routing::Routing;
use super::shape::Shape;
use super::weights::{Fill, Tensor, tensors};
use super::{Request, SynthError, blocks, header, run, write};

const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";

fn fixture(name: &str) -> PathBuf {
    let folder = std::env::var_os("GOLDCREST_FIXTURES").expect("GOLDCREST_FIXTURES: run `cargo xtask test`");
    Path::new(&folder).join(name)
}

fn tokenizer() -> PathBuf {
    fixture(SMOLLM2)
}

fn request(config: &str, mix: &str) -> Request {
    Request {
        mix: Mix::named(mix).unwrap(),
        ..Request::new(config).unwrap()
    }
}

/// A file in the folder of the build, removed at the end.
struct Written(PathBuf);

impl Written {
    fn new(name: &str, request: &Request) -> Written {
        let path = std::env::temp_dir().join(format!("goldcrest-synth-{}-{name}.gguf", std::process::id()));
        write(request, Some(&tokenizer()), &path).unwrap();
        Written(path)
    }

    fn open(&self) -> Checkpoint {
        Checkpoint::open(&self.0).unwrap()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // A file that is left behind does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn metadata(checkpoint: &Checkpoint) -> &Metadata {
    match checkpoint.config() {
        Config::Gguf(metadata) => metadata,
        Config::Hf(_) => panic!("a GGUF file was written"),
    }
}

fn mean_and_std(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let square = values
        .iter()
        .map(|&x| (f64::from(x) - mean) * (f64::from(x) - mean))
        .sum::<f64>()
        / n;
    (mean, square.sqrt())
}

#[test]
fn blocks_of_every_type_have_the_wanted_size() {
    use DType::*;
    let all = [
        F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
    ];
    // From an embedding to a matrix of many inputs in a deep model.
    for std in [1.0, 0.02, 0.002] {
        for dtype in all {
            let mut values = vec![0.0; 1 << 16];
            let mut bytes = vec![0; dtype.bytes(values.len() as u64).unwrap() as usize];
            blocks::fill(dtype, std, &mut Random::of(1, [2, 3]), &mut bytes).unwrap();
            decode(dtype, &bytes, &mut values).unwrap();
            assert!(values.iter().all(|x| x.is_finite()), "{dtype}");
            let (mean, found) = mean_and_std(&values);
            assert!((found / std - 1.0).abs() < 0.05, "{dtype}: {found} for {std}");
            assert!((mean / std).abs() < 0.03, "{dtype}: mean {mean} for {std}");
        }
    }
}

/// Tensors of each type.
fn types<'a>(dtypes: impl Iterator<Item = &'a DType>) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    dtypes.for_each(|dtype| *counts.entry(dtype.name()).or_default() += 1);
    counts
}

fn dtypes(shape: &Shape, mix: &str) -> BTreeMap<String, DType> {
    let tensors = tensors(shape, Mix::named(mix).unwrap());
    tensors.into_iter().map(|tensor| (tensor.name, tensor.dtype)).collect()
}

#[test]
fn tensors_are_those_of_published_files() {
    let published = |name: &str| -> BTreeMap<String, DType> {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        checkpoint
            .tensors()
            .map(|tensor| (tensor.name.clone(), tensor.dtype))
            .collect()
    };
    let shape = Shape::named("smollm2-135m").unwrap();
    assert_eq!(dtypes(&shape, "Q4_1"), published(SMOLLM2));
    // Its quantiser counted layers in the order 0, 1, 10, 11, …, so that others got more bits, but as many.
    let text = include_str!("presets/qwen2.5-0.5b.json").replace("true", "false");
    let (found, published) = (
        dtypes(&Shape::parse("untied", &text).unwrap(), "Q4_K_M"),
        published("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    );
    assert!(found.keys().eq(published.keys()));
    assert_eq!(types(found.values()), types(published.values()));
    assert_eq!(found["output.weight"], published["output.weight"]);
    assert_eq!(found["token_embd.weight"], published["token_embd.weight"]);
}

/// Counts by type are what llama.cpp prints when it loads the published file, sizes those of published models.
#[test]
fn sizes_are_those_of_published_models() {
    let shape = Shape::named("llama-3.2-1b").unwrap();
    let found = types(dtypes(&shape, "Q4_K_M").values());
    assert_eq!(found, BTreeMap::from([("F32", 34), ("Q4_K", 96), ("Q6_K", 17)]));
    for (config, wanted) in [
        // The divisors of its rotation included.
        ("llama-3.2-1b", 1_235_814_432),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen2.5-0.5b", 494_032_768),
        ("smollm2-135m", 134_515_008),
    ] {
        let tensors = tensors(&Shape::named(config).unwrap(), Mix::named("F32").unwrap());
        let parameters: u64 = tensors.iter().map(|tensor| tensor.rows() * tensor.row() as u64).sum();
        assert_eq!(parameters, wanted, "{config}");
    }
}

#[test]
fn what_is_read_is_what_was_written() {
    let request = request("tiny-moe", "Q4_K_M");
    let file = Written::new("head", &request);
    let checkpoint = file.open();
    let wanted = tensors(&request.shape, request.mix);
    let mut end = checkpoint.tensors().next().unwrap().offset;
    assert_eq!(checkpoint.tensors().len(), wanted.len());
    for (found, wanted) in checkpoint.tensors().zip(&wanted) {
        assert_eq!(
            (&found.name, found.dtype, &found.shape),
            (&wanted.name, wanted.dtype, &wanted.shape)
        );
        assert_eq!((found.offset, found.bytes), (end, wanted.bytes().unwrap()));
        end = (found.offset + found.bytes).next_multiple_of(header::ALIGNMENT);
    }
    assert_eq!(std::fs::metadata(&file.0).unwrap().len(), end);
    let metadata = metadata(&checkpoint);
    for (key, value) in header::settings(&request.shape, "synthetic tiny-moe", 15) {
        assert_eq!(metadata.get(&key), Some(&value), "{key}");
    }
    let source = Checkpoint::open(&tokenizer()).unwrap();
    let (tokens, types) = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type");
    for (key, value) in self::metadata(&source)
        .iter()
        .filter(|(key, _)| key.starts_with("tokenizer."))
    {
        if key != tokens && key != types {
            assert_eq!(metadata.get(key), Some(value), "{key}");
        }
    }
    let tokens = metadata.strings(tokens).unwrap();
    assert_eq!(tokens.len(), request.shape.vocabulary);
    assert_eq!(
        (tokens.get(2), tokens.get(49_152)),
        (Some("<|im_end|>"), Some("[unused 49152]"))
    );
    let kinds: Vec<i64> = metadata.required(types).unwrap();
    assert_eq!((kinds.len(), kinds[49_151], kinds[49_152]), (tokens.len(), 1, 5));
}

#[test]
fn the_bytes_depend_on_the_seed_alone() {
    let bytes = |name: &str, seed| {
        let mut request = request("tiny-moe", "Q4_0");
        request.shape.layers = 1;
        request.seed = seed;
        std::fs::read(&Written::new(name, &request).0).unwrap()
    };
    let first = bytes("seed-first", 7);
    assert!(first == bytes("seed-again", 7));
    assert!(first != bytes("seed-other", 8));
}

/// Tokens of each expert by layer.
struct Choices(Vec<Vec<usize>>);

impl Probe for Choices {
    fn after_op(&mut self, _: usize, op: &Op, output: OpOutput) -> Result<(), Interrupted> {
        if let (Op::Boundary { .. }, OpOutput::Stream(_)) = (op, output) {
            self.0.push(Vec::new());
        }
        if let OpOutput::Routes { ids, .. } = output {
            let counts = self.0.last_mut().expect("a layer has begun");
            counts.resize(16, 0);
            ids.iter().for_each(|&id| counts[id as usize] += 1);
        }
        Ok(())
    }
}

/// Runs 256 random tokens: the logits of the last, and what the routers chose.
fn feed(checkpoint: &Checkpoint) -> (Vec<f32>, Choices) {
    feed_engine(&Engine::open(checkpoint, EngineOptions::default()).unwrap())
}

fn feed_engine(engine: &Engine) -> (Vec<f32>, Choices) {
    let vocabulary = engine.spec().vocabulary;
    let mut random = Random::of(5, [0, 0]);
    let ids: Vec<u32> = (0..256).map(|_| (random.next() % vocabulary as u64) as u32).collect();
    let mut session = engine.session(ids.len()).unwrap();
    let (mut logits, mut choices) = (vec![0.0; vocabulary], Choices(Vec::new()));
    let chunk = Chunk {
        start: 0,
        ids: &ids,
        want: Want::Last,
    };
    let watch = Watch {
        cancel: None,
        probe: Some(&mut choices),
    };
    session.feed_watched(chunk, &mut logits, watch).unwrap();
    choices.0.retain(|counts| !counts.is_empty());
    (logits, choices)
}

/// What [`Fit`] chooses where not all experts fit.
#[test]
fn experts_read_under_a_limit_give_the_same_bits() {
    let written = Written::new("limited", &request("tiny-moe", "Q4_K_M"));
    under_limits(&written.open(), Streamed::Experts, 8 << 20);
}

/// A dense model of which a layer fits, or some.
#[test]
fn a_dense_model_read_under_a_limit_gives_the_same_bits() {
    let mut request = request("smollm2-135m", "Q8_0");
    request.shape.layers = 12;
    let written = Written::new("limited-dense", &request);
    under_limits(&written.open(), Streamed::All, 24 << 20);
}

/// Opens a model under limits from the least that is enough, each `step` bytes above the one before, until it is loaded whole.
fn under_limits(checkpoint: &Checkpoint, streamed: Streamed, step: usize) {
    let sequences = Sequences {
        count: 1,
        capacity: 256,
    };
    let options = EngineOptions {
        streaming: Some(StreamOptions {
            readers: 1,
            ..StreamOptions::default()
        }),
        ..EngineOptions::default()
    };
    let Err(FitError::TooLittle { least, .. }) = Fit::within(1, checkpoint, &options, sequences) else {
        panic!("a model in one byte");
    };
    let (resident, _) = feed(checkpoint);
    let mut seen = Vec::new();
    for limit in (least.sum()..).step_by(step) {
        let fit = Fit::within(limit, checkpoint, &options, sequences).unwrap();
        assert!(fit.sum() <= limit, "{fit}");
        let Some(streaming) = fit.options.streaming else { break };
        seen.push(streaming.streamed);
        let engine = Engine::open(checkpoint, fit.options).unwrap();
        assert_eq!(feed_engine(&engine).0, resident, "{fit}");
        assert!(engine.stream_counters().is_some_and(|counters| counters.misses > 0));
        assert!(engine.scratch_bytes() as u64 <= fit.budget.scratch, "{fit}");
        assert_eq!(engine.weight_bytes() as u64, fit.budget.weights);
    }
    assert!(seen.contains(&streamed), "{seen:?}");
}

/// The part of all choices that the `most` experts most often chosen have, by layer.
fn shares(choices: &Choices, most: usize) -> Vec<f64> {
    let share = |counts: &Vec<usize>| {
        let mut sorted = counts.clone();
        sorted.sort_by(|a, b| b.cmp(a));
        sorted[..most].iter().sum::<usize>() as f64 / sorted.iter().sum::<usize>() as f64
    };
    choices.0.iter().map(share).collect()
}

#[test]
fn models_run_and_their_activations_stay_sane() {
    for (config, mix, layers) in [("tiny-moe", "Q4_K_M", 4), ("smollm2-135m", "Q8_0", 12)] {
        let mut request = request(config, mix);
        request.shape.layers = layers;
        let file = Written::new(&format!("runs-{config}"), &request);
        let (logits, choices) = feed(&file.open());
        let (mean, std) = mean_and_std(&logits);
        assert!(
            (0.7..1.4).contains(&std) && mean.abs() < 0.1,
            "{config}: {mean} ± {std}"
        );
        // Four of 16 experts would have a quarter, but for chance.
        for share in shares(&choices, 4) {
            assert!(share < 0.4, "{config}: {share}");
        }
    }
}

#[test]
fn skewed_routers_choose_as_often_as_said() {
    let mut request = request("tiny-moe", "Q4_K_M");
    request.routing = Routing::parse("zipf:1").unwrap();
    let file = Written::new("skewed", &request);
    let (logits, choices) = feed(&file.open());
    assert!(logits.iter().all(|logit| logit.is_finite()));
    // Four of 16 by score −0.78 ln(rank) + a normal number: simulated, the four best are 54 % of what is chosen. What layers make of the
    // constant direction adds a little.
    let shares = shares(&choices, 4);
    assert_eq!(shares.len(), 4);
    for share in &shares {
        assert!((0.5..0.65).contains(share), "{shares:?}");
    }
    // The favourites of a layer are not those of the next.
    let favourite = |counts: &Vec<usize>| (0..16).max_by_key(|&expert| counts[expert]);
    let favourites: std::collections::BTreeSet<_> = choices.0.iter().map(favourite).collect();
    assert!(favourites.len() > 1, "{favourites:?}");
}

#[test]
fn what_cannot_be_written_is_refused() {
    let refused = |arguments: &[&str]| run(arguments, Path::new("no/such/folder")).unwrap_err();
    let refusal = |arguments: &[&str]| refused(&[&["tiny-moe", "no/such/folder/out.gguf"], arguments].concat());
    assert!(matches!(refused(&["tiny-moe"]), SynthError::Usage { .. }));
    assert!(matches!(refused(&["no-preset", "out.gguf"]), SynthError::Config { .. }));
    assert!(matches!(refusal(&["--mix", "Q9"]), SynthError::Mix { .. }));
    assert!(matches!(refusal(&["--mix"]), SynthError::Usage { .. }));
    assert!(matches!(refusal(&["--speed", "1"]), SynthError::Usage { .. }));
    for routing in ["zipf", "zipf:-1", "zipf:NaN", "skewed"] {
        assert!(
            matches!(refusal(&["--routing", routing]), SynthError::Routing { .. }),
            "{routing}"
        );
    }
    assert!(matches!(refusal(&[]), SynthError::Tokenizer(_)));
    let mut small = request("tiny-moe", "Q4_0");
    small.shape.vocabulary = 100;
    let no_file = Path::new("no/such/folder/out.gguf");
    let error = write(&small, Some(&tokenizer()), no_file).unwrap_err();
    assert!(
        matches!(
            error,
            SynthError::Vocabulary {
                vocabulary: 100,
                tokens: 49_152
            }
        ),
        "{error}"
    );
    let mut dense = request("llama-3.2-1b", "Q4_0");
    dense.routing = Routing::Zipf { exponent: 1.0 };
    let error = write(&dense, Some(&tokenizer()), no_file).unwrap_err();
    assert!(matches!(error, SynthError::Skew { .. }), "{error}");
    let error = write(&request("tiny-moe", "Q4_0"), Some(&tokenizer()), no_file).unwrap_err();
    assert!(matches!(error, SynthError::Write { .. }), "{error}");
}

#[test]
fn configurations_are_read_as_they_are_published() {
    let read = |change: &[(&str, &str)]| {
        let mut text = include_str!("presets/llama-3.2-1b.json").to_owned();
        for (from, to) in change {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        Shape::parse("changed", &text)
    };
    let divisors = read(&[]).unwrap().rope_divisors().unwrap();
    // Fast waves as they are, slow ones 32 times slower.
    assert_eq!((divisors.len(), divisors[0], divisors[31]), (32, 1.0, 32.0));
    assert!(divisors.is_sorted());
    let newer = read(&[("rope_scaling", "rope_parameters"), ("\"rope_theta\": 500000.0,", "")]).unwrap();
    assert_eq!((newer.rope_base, newer.head_dim), (10_000.0, 64));
    let refused = |from, to| read(&[(from, to)]).unwrap_err();
    for (from, to) in [
        ("\"hidden_size\": 2048", "\"hidden_size\": 0"),
        ("\"hidden_size\": 2048", "\"hidden_size\": 4000000"),
        ("\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7"),
        ("\"head_dim\": 64", "\"head_dim\": 63"),
        ("\"rope_type\": \"llama3\"", "\"rope_type\": \"yarn\""),
        ("\"low_freq_factor\": 1.0", "\"low_freq_factor\": 4.0"),
        ("\"head_dim\": 64", "\"attention_bias\": true"),
        ("\"head_dim\": 64", "\"num_experts\": 8"),
    ] {
        assert!(matches!(refused(from, to), SynthError::Setting { .. }), "{to}");
    }
    assert!(matches!(refused("\"llama\"", "\"bert\""), SynthError::Family { .. }));
    assert!(matches!(
        refused("\"vocab_size\"", "\"vocabulary\""),
        SynthError::Json { .. }
    ));
}

#[test]
fn every_kind_of_metadata_can_be_written() {
    use goldcrest_format::gguf::Array;
    let arrays = vec![
        Array::U8(vec![1]),
        Array::I8(vec![-1]),
        Array::U16(vec![2]),
        Array::I16(vec![-2]),
        Array::U32(vec![3]),
        Array::I32(vec![-3]),
        Array::U64(vec![4]),
        Array::I64(vec![-4]),
        Array::F32(vec![0.5]),
        Array::F64(vec![0.25]),
        Array::Bool(vec![true, false]),
        Array::Str(["a", "b"].into_iter().collect()),
    ];
    let mut values = vec![
        Value::U8(1),
        Value::I8(-1),
        Value::U16(2),
        Value::I16(-2),
        Value::U32(3),
        Value::I32(-3),
        Value::U64(4),
        Value::I64(-4),
        Value::F32(0.5),
        Value::F64(0.25),
        Value::Bool(true),
        Value::Str("text".to_owned()),
        Value::Array(Array::Nested(arrays.clone())),
    ];
    values.extend(arrays.into_iter().map(Value::Array));
    let entries: Vec<(String, Value)> = values
        .into_iter()
        .enumerate()
        .map(|(i, value)| (format!("key.{i}"), value))
        .collect();
    let tensor = Tensor {
        name: "weight".to_owned(),
        dtype: DType::F32,
        shape: vec![2, 8],
        fill: Fill::Around { mean: 0.0 },
    };
    let (mut file, offsets) = header::encode(&entries, &[tensor]).unwrap();
    file.resize(offsets[1] as usize, 0);
    let source = goldcrest_format::Source::memory("buffer", file);
    let read = goldcrest_format::gguf::read(&source, 0).unwrap();
    let found: Vec<(String, Value)> = read
        .metadata
        .iter()
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    assert_eq!(found, entries);
    assert_eq!(read.tensors[0].offset, offsets[0]);
}
