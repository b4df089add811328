//! What routers chose, as users of the command get it.

mod support;

use std::fs;

use serde_json::Value;
use support::{Folder, goldens, output, refusal, results, tiny};

const EXPERTS: usize = 8;
const TOP_K: u64 = 2;
const LAYERS: usize = 2;

/// A mixture with a tokenizer.
fn mixture() -> String {
    let path = goldens().join("../goldens-gguf/mixtral.gguf");
    path.to_str().unwrap().to_owned()
}

fn read(path: &str) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_u64().unwrap())
        .collect()
}

/// Checks the layers of a file; returns who was chosen, by layer, and the misses.
fn check(layers: &Value, rows: u64, reads: bool) -> (Vec<Vec<u64>>, u64) {
    let layers = layers.as_array().unwrap();
    assert_eq!(layers.len(), LAYERS);
    let mut misses = 0;
    let mut all = Vec::new();
    for (i, layer) in layers.iter().enumerate() {
        assert_eq!(layer["layer"], i);
        let chosen = numbers(&layer["chosen"]);
        assert_eq!(chosen.len(), EXPERTS);
        assert_eq!(chosen.iter().sum::<u64>(), rows * TOP_K, "{layer}");
        match reads {
            false => assert!(layer["reads"].is_null(), "{layer}"),
            true => {
                let of = |key: &str| layer["reads"][key].as_u64().unwrap();
                assert!(
                    of("misses") > 0 && of("bytes_read") > 0 && of("hits") + of("misses") <= rows * TOP_K,
                    "{layer}"
                );
                assert!(layer["reads"]["waited_s"].as_f64().unwrap() >= 0.0);
                misses += of("misses");
            }
        }
        all.push(chosen);
    }
    (all, misses)
}

#[test]
fn a_reply_and_a_perplexity_tell_who_was_chosen() {
    let folder = Folder::new("routers");
    let (model, out, text) = (mixture(), folder.file("out.json"), folder.file("text"));
    fs::write(&text, "It was the best of times, it was the worst of times.").unwrap();
    let ids = results(&output(&["tokenize", &model, "It was", "--ids"]));
    let prompt = ids.split(',').count() as u64;
    let of_text = results(&output(&[
        "tokenize",
        &model,
        &fs::read_to_string(&text).unwrap(),
        "--ids",
    ]));
    let of_text = of_text.split(',').count() as u64;
    // The last token of a reply is not fed. No two rows of a text end in one window, whose last token is not fed either.
    let run: &[&str] = &["run", &model, "It was", "--raw", "-n", "5", "--temp", "0"];
    let perplexity: &[&str] = &["perplexity", &model, &text, "--context", "128"];
    for (words, rows) in [(run, prompt + 4), (perplexity, of_text - 1)] {
        let stats = |more: &[&str]| {
            results(&output(&[words, &["--router-stats", &out], more].concat()));
            let stats = read(&out);
            assert_eq!(stats["model"], model);
            fs::remove_file(&out).unwrap();
            stats
        };
        let (whole, _) = check(&stats(&[])["layers"], rows, false);
        // Verbose replies count for themselves too.
        let more: &[&str] = if words[0] == "run" { &["--verbose"] } else { &[] };
        let streamed = stats(&[&["--expert-memory", "64KiB"], more].concat());
        let (chosen, _) = check(&streamed["layers"], rows, true);
        assert_eq!(chosen, whole, "who is chosen does not depend on the memory");
    }
}

#[test]
fn every_test_of_a_bench_has_its_own() {
    let folder = Folder::new("bench-routers");
    let (model, out) = (mixture(), folder.file("out.json"));
    let words = [
        "bench",
        &model,
        "-p",
        "9",
        "-n",
        "3",
        "-b",
        "2",
        "-r",
        "2",
        "-t",
        "1,2",
        "--expert-memory",
        "64KiB",
        "--profile",
    ];
    let shown = output(&[&words[..], &["--router-stats", &out, "--json"]].concat());
    let report: Value = serde_json::from_str(&results(&shown)).unwrap();
    let stats = read(&out);
    let tests = stats["tests"].as_array().unwrap();
    let names: Vec<&str> = tests.iter().map(|test| test["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp9", "tg3x2", "pp9", "tg3x2"]);
    for (test, rows) in tests.iter().zip([9, 6, 9, 6]) {
        check(&test["layers"], 2 * rows, true);
    }
    for (profile, rows) in report["profile"].as_array().unwrap().iter().zip([9, 6, 9, 6]) {
        check(&profile["layers"], rows, true);
    }
    let table = results(&output(&words));
    let lines: Vec<&str> = table.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.starts_with("layer   experts "))
        .unwrap();
    let first: Vec<&str> = lines[at + 1].split_whitespace().collect();
    assert_eq!((first[0], first.len()), ("0", 6), "{table}");
}

#[test]
fn statistics_that_cannot_be_are_refused_before_anything_is_loaded() {
    let folder = Folder::new("no-routers");
    let (model, out) = (tiny(), folder.file("out.json"));
    for words in [&["run", "Hi"][..], &["bench", "-p", "3"]] {
        let words = [&[words[0], &model], &words[1..], &["--router-stats", &out]].concat();
        let refused = refusal(&output(&words), 2);
        assert!(
            refused.contains("--router-stats needs a model with experts"),
            "{refused}"
        );
    }
    let nowhere = folder.file("no/out.json");
    let refused = refusal(
        &output(&["run", &mixture(), "Hi", "--raw", "--router-stats", &nowhere]),
        1,
    );
    assert!(refused.contains("cannot write "), "{refused}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}
