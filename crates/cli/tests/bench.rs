//! `bench`: which tests it runs, and what its report holds. No speed is judged here.

mod support;

use serde_json::Value;
use support::{goldens, json, output, refusal, results, tiny};

fn tests(report: &Value) -> Vec<&str> {
    let results = report["results"].as_array().unwrap();
    results.iter().map(|test| test["test"].as_str().unwrap()).collect()
}

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn both_tests_have_their_rates() {
    let report = json(&output(&["bench", &tiny(), "-p", "20", "-n", "4", "-r", "2", "--json"]));
    assert_eq!(tests(&report), ["pp20", "tg4"]);
    for test in report["results"].as_array().unwrap() {
        let rate = &test["tokens_per_s"];
        let [min, median, max] = ["min", "median", "max"].map(|key| float(&rate[key]));
        assert!(0.0 < min && min <= median && median <= max, "{rate}");
        assert_eq!(rate["runs"].as_array().unwrap().len(), 2);
        for key in ["gb_per_s", "state_gb_per_s", "gop_per_s"] {
            assert!(float(&test[key]) > 0.0, "{key} of {test}");
        }
        for key in ["share_of_read", "share_of_int8", "share_of_f32", "probe"] {
            assert!(test[key].is_null(), "{key} of {test}");
        }
    }
    assert_eq!(report["model"], tiny());
    assert!(!report["machine"].as_str().unwrap().is_empty());
    assert!(report["probe"].is_null() && report["profile"].is_null());
    let [load] = &report["load"].as_array().unwrap()[..] else {
        panic!("{}", report["load"]);
    };
    let [ready, first] = ["ready_s", "first_token_s"].map(|key| float(&load[key]));
    assert!(0.0 < ready && ready < first && first < 60.0, "{load}");
    let peak = load["peak_bytes"].as_u64();
    let weights = load["weight_bytes"].as_u64();
    assert!(
        !cfg!(target_os = "linux") || peak > weights && weights > Some(0),
        "{load}"
    );
    let text = results(&output(&["bench", &tiny(), "-p", "0", "-n", "4", "-r", "1"]));
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    assert_eq!(
        text.lines().map(first).collect::<Vec<_>>(),
        [Some("test".into()), Some("tg4".into()), None, Some("load".into())]
    );
}

#[test]
fn every_combination_is_measured() {
    let lists = [
        "-p", "5,7", "-n", "3", "-d", "0,9", "-b", "1,4", "-t", "1,2", "-r", "1", "--json",
    ];
    let report = json(&output(&[&["bench", &tiny()], &lists[..]].concat()));
    let of_one = ["pp5", "pp5@d9", "pp7", "pp7@d9", "tg3", "tg3@d9", "tg3x4", "tg3x4@d9"];
    assert_eq!(tests(&report), [of_one, of_one].concat());
    let results = report["results"].as_array().unwrap();
    let threads: Vec<u64> = results.iter().map(|test| test["threads"].as_u64().unwrap()).collect();
    assert_eq!(threads, [[1; 8], [2; 8]].concat());
    assert_eq!(report["threads"], serde_json::json!([1, 2]));
    let loads = report["load"].as_array().unwrap();
    assert_eq!([&loads[0]["threads"], &loads[1]["threads"]], [1, 2]);
    assert!(
        loads
            .iter()
            .all(|load| load["max_rows"] == 512 && load["expert_memory_bytes"].is_null())
    );
    let last = &results[7];
    let [tokens, depth, sequences] = ["tokens", "depth", "sequences"].map(|key| last[key].as_u64().unwrap());
    assert_eq!((tokens, depth, sequences), (3, 9, 4));
}

/// The profile of a test with its ops.
fn profile<'a>(report: &'a Value, test: &str) -> (&'a Value, &'a Vec<Value>) {
    let profiles = report["profile"].as_array().unwrap();
    let profile = profiles.iter().find(|profile| profile["test"] == test);
    let profile = profile.unwrap_or_else(|| panic!("no profile of {test}"));
    (profile, profile["steps"].as_array().unwrap())
}

fn holds(step: &Value, kind: &str) -> bool {
    step["ops"].as_array().unwrap().iter().any(|op| op == kind)
}

/// The sum of a number over the steps with ops of a kind.
fn sum(steps: &[Value], kind: &str, key: &str) -> u64 {
    let of_kind = steps.iter().filter(|step| holds(step, kind));
    of_kind.map(|step| step[key].as_u64().unwrap()).sum()
}

/// How often ops of a kind ran.
fn runs(steps: &[Value], kind: &str) -> u64 {
    let in_step = |step: &Value| step["ops"].as_array().unwrap().iter().filter(|op| *op == kind).count() as u64;
    steps
        .iter()
        .map(|step| in_step(step) * step["runs"].as_u64().unwrap())
        .sum()
}

#[test]
fn a_profile_counts_every_op_and_its_cost() {
    let words = [
        "-p",
        "6",
        "-n",
        "4",
        "-d",
        "10",
        "-b",
        "1,3",
        "-r",
        "1",
        "--profile",
        "--json",
    ];
    let report = json(&output(&[&["bench", &tiny()], &words[..]].concat()));
    let config: Value = serde_json::from_slice(&std::fs::read(goldens().join("llama3/config.json")).unwrap()).unwrap();
    let number = |key: &str| config[key].as_u64().unwrap();
    let [hidden, inner, layers] = ["hidden_size", "intermediate_size", "num_hidden_layers"].map(number);
    let [heads, kv_heads] = ["num_attention_heads", "num_key_value_heads"].map(number);
    let head_dim = hidden / heads;
    let in_layers = layers * hidden * (hidden * 2 + kv_heads * head_dim * 2 + inner * 3);
    let head = hidden * number("vocab_size");
    // Test, calls, rows of a call, wanted ones, positions read and seen in a layer. Positions before are 10.
    let cases = [
        ("pp6@d10", 1, 6, 1, 16, 11 + 12 + 13 + 14 + 15 + 16),
        ("tg4@d10", 4, 1, 1, 11 + 12 + 13 + 14, 11 + 12 + 13 + 14),
        ("tg4x3@d10", 4, 3, 3, 3 * (11 + 12 + 13 + 14), 3 * (11 + 12 + 13 + 14)),
    ];
    for (test, calls, rows, wanted, read, seen) in cases {
        let (profile, ops) = profile(&report, test);
        assert_eq!(profile["calls"], calls, "{test}");
        assert_eq!(runs(ops, "matmul"), calls * (7 * layers + 1), "{test}");
        // BF16.
        assert_eq!(
            sum(ops, "matmul", "weight_bytes"),
            2 * calls * (in_layers + head),
            "{test}"
        );
        let products = calls * (rows * in_layers + wanted * head);
        assert_eq!(sum(ops, "matmul", "operations"), 2 * products, "{test}");
        assert_eq!(sum(ops, "embed", "weight_bytes"), 2 * calls * rows * hidden, "{test}");
        // f16 keys and values.
        let position = 2 * 2 * kv_heads * head_dim * layers;
        assert_eq!(sum(ops, "kv_write", "state_bytes"), calls * rows * position, "{test}");
        assert_eq!(sum(ops, "attend", "state_bytes"), read * position, "{test}");
        assert_eq!(
            sum(ops, "attend", "operations"),
            2 * 2 * seen * layers * hidden,
            "{test}"
        );
        assert_eq!(runs(ops, "norm"), calls * (2 * layers + 1), "{test}");
        // Each norm is in the step of the products after it. It reads a row and writes one, of which each product reads one and writes
        // its own; an activation reads and writes the gate and reads the other.
        let queries_keys_values = 2 * hidden + 3 * hidden + (hidden + 2 * kv_heads * head_dim);
        let gate_and_up = 2 * hidden + 2 * hidden + 2 * inner + 3 * inner;
        let logits = 2 * hidden + hidden + number("vocab_size");
        let numbers = layers * rows * (queries_keys_values + gate_and_up) + wanted * logits;
        assert_eq!(sum(ops, "norm", "buffer_bytes"), 4 * calls * numbers, "{test}");
        let shares: f64 = ops.iter().map(|op| float(&op["share_of_time"])).sum();
        assert!(
            (shares - float(&profile["share_of_ops"])).abs() < 1e-9 && shares <= 1.0,
            "{test}"
        );
    }
}

#[test]
fn weights_are_named_by_type_and_shape() {
    let text = results(&output(&[
        "bench",
        &tiny(),
        "-p",
        "3",
        "-n",
        "0",
        "-r",
        "1",
        "--profile",
    ]));
    let steps = text.split_once("\npp3 on ").expect("a profile").1;
    // Which products run together is the back end's matter.
    for matrices in [
        "BF16 64x64",
        "BF16 32x64",
        "BF16 320x64",
        "\nembed BF16 320x64 ",
        "\nattend ",
    ] {
        assert!(steps.contains(matrices), "{matrices:?} in {text}");
    }
}

#[test]
fn the_probe_stands_beside_every_figure() {
    let words = [
        "-p",
        "0",
        "-n",
        "4",
        "-t",
        "1",
        "-r",
        "1",
        "--roofline",
        "--profile",
        "--json",
    ];
    let report = json(&output(&[&["bench", &tiny()], &words[..]].concat()));
    let test = &report["results"][0];
    let peak = |key: &str| float(&test["probe"][key]);
    let [read, int8, f32] = ["read_gb_per_s", "int8_gop_per_s", "f32_gop_per_s"].map(peak);
    assert!(read > 0.0 && int8 > 0.0 && f32 > 0.0);
    for (share, rate, peak) in [
        ("share_of_read", "gb_per_s", read),
        ("share_of_int8", "gop_per_s", int8),
        ("share_of_f32", "gop_per_s", f32),
    ] {
        let expected = float(&test[rate]) / peak;
        assert!((float(&test[share]) / expected - 1.0).abs() < 1e-9, "{share} of {test}");
    }
    let runs = report["probe"]["runs"].as_array().unwrap();
    let when: Vec<&str> = runs.iter().map(|run| run["when"].as_str().unwrap()).collect();
    assert_eq!(when, ["before", "after"]);
    let mean = (float(&runs[0]["read_gb_per_s"]) + float(&runs[1]["read_gb_per_s"])) / 2.0;
    assert!((mean / read - 1.0).abs() < 1e-9);
    let (_, ops) = profile(&report, "tg4");
    for op in ops {
        let peak = if op["arithmetic"] == "int8" { int8 } else { f32 };
        let share = float(&op["gop_per_s"]) / peak;
        assert!((float(&op["share_of_peak"]) - share).abs() <= 1e-9 * share, "{op}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let refused = |words: &[&str]| refusal(&output(&[&["bench", &tiny()], words].concat()), 2);
    assert!(refused(&["-p", "0", "-n", "0"]).contains("nothing to measure"));
    assert!(refused(&["-p", "100", "-n", "0", "-d", "0,29"]).contains("pp100@d29 needs 129 positions"));
    assert!(refused(&["-p", "0", "-n", "129"]).contains("trained for 128"));
    for zero in ["-b", "-t", "-r"] {
        assert!(refused(&[zero, "0"]).contains("invalid value '0'"), "{zero}");
    }
    assert!(refused(&["-p", "1,x"]).contains("invalid value 'x'"));
}
