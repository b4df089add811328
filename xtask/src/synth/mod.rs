//! `cargo xtask synth`: GGUF files of real shape with random weights, for measuring models that cannot be had here, or that are larger than
//! memory. Tensors, their types and their order are those of published files; the tokenizer is a real one; the text is noise.

mod blocks;
mod error;
mod families;
mod header;
mod mix;
mod random;
mod routing;
mod shape;
#[cfg(test)]
mod tests;
mod weights;
mod write;

use std::path::{Path, PathBuf};
use std::time::Instant;

use error::SynthError;
use mix::Mix;
use routing::{Routing, Skew};
use shape::Shape;

pub(crate) fn usage() -> String {
    format!(
        "usage: cargo xtask synth CONFIG OUT.gguf [--mix MIX] [--seed N] [--routing ROUTING] [--tokenizer FILE.gguf]\n\
         \n\
         CONFIG     {}, or the path of a config.json (model_type {})\n\
         MIX        {}; Q4_K_M unless given\n\
         N          0 unless given; the same seed gives the same bytes\n\
         ROUTING    uniform, or zipf:S: experts are chosen about as often as rank^-S. zipf:1 routes like real models:\n\
         {:10} 16 of 128 experts get two thirds of the choices, 32 get 84 %\n\
         FILE.gguf  whose tokenizer is taken: SmolLM2's from the fixtures unless given",
        shape::preset_names(),
        families::model_types(),
        mix::names(),
        "",
    )
}

/// What to write.
#[derive(Debug)]
struct Request {
    name: String,
    shape: Shape,
    mix: Mix,
    routing: Routing,
    seed: u64,
}

/// Runs the command; `fixtures` holds the usual tokenizer.
pub(crate) fn run(arguments: &[&str], fixtures: &Path) -> Result<(), SynthError> {
    let [config, out, options @ ..] = arguments else {
        return Err(bad_usage("a configuration and a file to write are needed"));
    };
    let mut request = Request::new(config)?;
    let mut tokenizer = fixtures.join("smollm2-135m-instruct-q4_1.gguf");
    for option in options.chunks(2) {
        let [key, value] = option else {
            return Err(bad_usage(&format!("{} needs a value", option.join(" "))));
        };
        match *key {
            "--mix" => request.mix = Mix::named(value)?,
            "--seed" => request.seed = value.parse().map_err(|_| bad_usage("--seed takes a number"))?,
            "--routing" => request.routing = Routing::parse(value)?,
            "--tokenizer" => tokenizer = PathBuf::from(value),
            other => return Err(bad_usage(&format!("{other} is no option"))),
        }
    }
    let started = Instant::now();
    let bytes = write(&request, Some(&tokenizer), Path::new(out))?;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{out}: {bytes} bytes in {seconds:.1} s, {:.0} MB/s",
        bytes as f64 / 1e6 / seconds
    );
    Ok(())
}

fn bad_usage(problem: &str) -> SynthError {
    SynthError::Usage {
        problem: problem.to_owned(),
    }
}

impl Request {
    fn new(config: &str) -> Result<Request, SynthError> {
        let file_name = Path::new(config).file_name().unwrap_or_default();
        Ok(Request {
            name: file_name.to_string_lossy().into_owned(),
            shape: Shape::named(config)?,
            mix: Mix::named("Q4_K_M")?,
            routing: Routing::Uniform,
            seed: 0,
        })
    }
}

/// Writes a preset's shape with few layers and ids, and without a tokenizer: a model whose numbers alone are of interest.
pub(crate) fn write_small(preset: &str, mix: &str, out: &Path) -> Result<(), SynthError> {
    let mut request = Request::new(preset)?;
    request.mix = Mix::named(mix)?;
    request.shape.layers = 2;
    request.shape.vocabulary = 2048;
    write(&request, None, out).map(|_| ())
}

/// Writes the model and returns the length of the file.
fn write(request: &Request, tokenizer: Option<&Path>, out: &Path) -> Result<u64, SynthError> {
    let Request { shape, mix, .. } = request;
    let mut entries = header::settings(shape, &format!("synthetic {}", request.name), mix.file_type);
    if let Some(tokenizer) = tokenizer {
        entries.extend(header::tokenizer(tokenizer, shape.vocabulary)?);
    }
    let tensors = weights::tensors(shape, *mix);
    let (head, offsets) = header::encode(&entries, &tensors)?;
    let embedding = mix.dtype(mix::Place {
        shape,
        role: mix::Role::Embedding,
        layer: 0,
        row: shape.hidden,
    });
    let data = write::Data {
        tensors: &tensors,
        offsets: &offsets,
        skew: Skew::new(shape, request.routing, request.seed, embedding)?,
        seed: request.seed,
    };
    write::write(out, &head, &data)
}
