//! Residual streams and perplexity as users of the command see them.

mod support;

use std::fs;
use std::path::Path;

use goldcrest_engine::steering::ControlVector;
use goldcrest_format::Checkpoint;
use serde_json::Value;
use support::{Folder, goldens, json, output, refusal, results, tiny};

fn case() -> Value {
    serde_json::from_slice(&fs::read(goldens().join("llama3/case.json")).unwrap()).unwrap()
}

fn joined(numbers: &Value) -> String {
    let numbers: Vec<String> = numbers.as_array().unwrap().iter().map(Value::to_string).collect();
    numbers.join(",")
}

/// A tensor of a safetensors file: shape and values.
fn tensor(file: &Path, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
    let file = Checkpoint::open_tensors(file).unwrap();
    let info = file.tensor(name)?;
    let mut values = vec![0.0; info.elements()];
    file.decode(info, &mut values).unwrap();
    Some((info.shape.clone(), values))
}

#[test]
fn captured_streams_are_those_of_the_reference() {
    let folder = Folder::new("capture");
    let out = folder.file("x.safetensors");
    let case = case();
    let (ids, positions) = (joined(&case["prompt_ids"]), joined(&case["sampled_positions"]));
    let exact = ["--kv", "f32", "--activations", "f32"];
    let command = [
        "capture",
        &tiny(),
        "--ids",
        &ids,
        "--positions",
        &positions,
        "--out",
        &out,
    ];
    assert_eq!(results(&output(&[&command[..], &exact].concat())), "");
    for layer in 0..=3 {
        let name = format!("residual.{layer}");
        let (shape, found) = tensor(Path::new(&out), &name).unwrap();
        let (wanted_shape, wanted) = tensor(&goldens().join("llama3/reference.safetensors"), &name).unwrap();
        assert_eq!(shape, wanted_shape);
        let count = wanted.len() as f64;
        let mean = wanted.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let variance = wanted
            .iter()
            .map(|x| (f64::from(*x) - mean) * (f64::from(*x) - mean))
            .sum::<f64>()
            / count;
        for (found, wanted) in found.iter().zip(&wanted) {
            let difference = (f64::from(*found) - f64::from(*wanted)).abs();
            assert!(difference <= 2e-4 * variance.sqrt(), "{name}: {found} for {wanted}");
        }
    }
    let some = [
        "capture",
        &tiny(),
        "--ids",
        &ids,
        "--layers",
        "0,2-3",
        "--positions",
        "4",
        "--out",
        &out,
    ];
    results(&output(&some));
    assert!(tensor(Path::new(&out), "residual.1").is_none());
    assert_eq!(tensor(Path::new(&out), "residual.3").unwrap().0, [1, 64]);
}

#[test]
fn captures_of_what_there_is_not_are_refused() {
    let folder = Folder::new("no-capture");
    let out = folder.file("x.safetensors");
    let capture = |more: &[&str]| output(&[&["capture", &tiny(), "--out", &out], more].concat());
    let error = refusal(&capture(&["--prompt", "Hi", "--layers", "0-4"]), 2);
    assert_eq!(error, "error: --layers: 4 is beyond the last, 3");
    assert!(refusal(&capture(&["--ids", "1,2", "--positions", "2"]), 2).starts_with("error: --positions: 2 is beyond"));
    assert!(refusal(&capture(&["--ids", "1,320"]), 1).contains("outside the vocabulary"));
    for usage in [
        &[][..],
        &["--ids", "1", "--prompt", "Hi"],
        &["--ids", "1", "--layers", "2-1"],
    ] {
        assert_eq!(capture(usage).status.code(), Some(2), "{usage:?}");
    }
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[test]
fn vectors_are_made_and_steer_a_reply() {
    let folder = Folder::new("steer");
    let (positive, negative) = (folder.file("p.txt"), folder.file("n.txt"));
    fs::write(&positive, "I am glad\nGood day to you\n\n").unwrap();
    fs::write(&negative, "I am sad\nAway with you all").unwrap();
    let make = |name: &str, method: &str| {
        let out = folder.file(name);
        let sets = ["--positive", &positive, "--negative", &negative];
        let command = ["steer", "make", &tiny(), "--out", &out, "--method", method];
        assert_eq!(results(&output(&[&command[..], &sets].concat())), "");
        (ControlVector::open(Path::new(&out)).unwrap(), out)
    };
    let ((mean, gguf), (same, _), (axis, safetensors)) = (
        make("mean.gguf", "mean"),
        make("mean.safetensors", "mean"),
        make("axis.safetensors", "pca"),
    );
    assert_eq!(mean, same);
    assert_eq!((mean.layers().collect::<Vec<_>>(), mean.width()), (vec![1, 2], 64));
    for layer in axis.layers() {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let (mean, axis) = (mean.direction(layer).unwrap(), axis.direction(layer).unwrap());
        assert!((dot(axis, axis) - 1.0).abs() < 1e-6 && dot(axis, mean) > 0.0);
    }
    let reply = |steers: &[&str]| {
        let steers: Vec<String> = steers.iter().map(|steer| format!("--steer={steer}")).collect();
        let mut command = vec![
            "run".to_owned(),
            tiny(),
            "Hello".into(),
            "--raw".into(),
            "-n".into(),
            "12".into(),
        ];
        command.extend(steers);
        results(&output(&command.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    let plain = reply(&[]);
    assert_eq!(reply(&[&format!("{gguf}:0")]), plain);
    let steered = reply(&[&format!("{gguf}:8")]);
    assert_ne!(steered, plain);
    // Two halves are the whole.
    assert_eq!(reply(&[&format!("{gguf}:4"), &format!("{gguf}:4:1-2")]), steered);
    assert_ne!(reply(&[&format!("{safetensors}:50:2")]), plain);
}

#[test]
fn vectors_that_do_not_fit_are_refused() {
    let folder = Folder::new("no-steer");
    let run = |steer: &str| refusal(&output(&["run", &tiny(), "Hi", "--raw", "--steer", steer]), 1);
    let error = run(&folder.file("absent.gguf"));
    assert!(
        error.starts_with("error: cannot steer with ") && error.contains("cannot open"),
        "{error}"
    );
    let model = goldens().join("../goldens-gguf/llama3.gguf");
    let error = run(model.to_str().unwrap());
    assert!(error.contains("that of a control vector is 'controlvector'"), "{error}");
    let narrow = ControlVector::new([(1, vec![1.0; 8])].into()).unwrap();
    let file = folder.file("narrow.gguf");
    goldcrest::directions::write(&narrow, "llama", Path::new(&file)).unwrap();
    let error = run(&file);
    assert!(
        error.ends_with("its directions have 8 numbers, the residual stream of the model has 64"),
        "{error}"
    );
    let fitting = ControlVector::new([(1, vec![1.0; 64])].into()).unwrap();
    goldcrest::directions::write(&fitting, "llama", Path::new(&file)).unwrap();
    let error = run(&format!("{file}:1:2-2"));
    assert!(
        error.ends_with("there is no direction for any of the layers 2 to 2"),
        "{error}"
    );
    let empty = folder.file("empty.txt");
    fs::write(&empty, "\n").unwrap();
    let make = [
        "steer",
        "make",
        &tiny(),
        "--positive",
        &empty,
        "--negative",
        &empty,
        "--out",
        &file,
    ];
    assert!(refusal(&output(&make), 2).ends_with("there is no prompt"));
}

const TEXT: &str = "It was the best of times, it was the worst of times.";

#[test]
fn perplexity_reports_what_it_measured() {
    let folder = Folder::new("perplexity");
    let text = folder.file("t.txt");
    fs::write(&text, TEXT).unwrap();
    let command = ["perplexity", &tiny(), &text, "--context", "16"];
    let report = json(&output(&[&command[..], &["--json"]].concat()));
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key} of {report}"));
    let (tokens, windows) = (number("tokens"), number("windows"));
    // The begin token takes one place of each window and is not predicted.
    assert_eq!(windows, (tokens / 15.0).ceil());
    let ids = results(&output(&["tokenize", &tiny(), TEXT, "--ids"]));
    assert_eq!(tokens, ids.split(',').count() as f64);
    #[expect(
        clippy::disallowed_methods,
        reason = "a test may differ in the last bit between platforms"
    )]
    let mean_nll = number("perplexity").ln();
    assert!((mean_nll - number("mean_nll")).abs() < 1e-9);
    assert!(number("perplexity_standard_error") > 0.0);
    let told = results(&output(&command));
    assert!(
        told.contains(&format!("tokens      {tokens} in {windows} windows of 16\n")),
        "{told}"
    );
    assert!(
        told.contains(&format!("perplexity  {:.4} ± ", number("perplexity"))),
        "{told}"
    );
    let error = refusal(&output(&["perplexity", &tiny(), &text, "--context", "1"]), 2);
    assert_eq!(error, "error: --context 1 is less than 2: 1 begin a window");
    fs::write(&text, "").unwrap();
    assert!(refusal(&output(&command), 2).ends_with("there is no token to predict"));
    fs::write(&text, [0xff]).unwrap();
    assert!(refusal(&output(&command), 1).contains("UTF-8"));
}
