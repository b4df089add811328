//! The command as its users see it: streams, exit codes, results.

mod support;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use goldcrest_format::{Checkpoint, DType};
use serde_json::Value;
use support::{Folder, goldcrest, goldens, json, output, piped, refusal, results, tiny};

#[test]
fn show_tells_what_a_model_is() {
    let text = results(&output(&["show", &tiny()]));
    for fact in [
        "family      llama",
        "context     128 tokens",
        "vocabulary  320",
        "BF16 × ",
        "template    ",
        "ends      ",
    ] {
        assert!(text.contains(fact), "{fact:?} is not in\n{text}");
    }
    let facts = json(&output(&["show", &tiny(), "--json"]));
    assert_eq!(facts["hidden"], 64);
    assert_eq!(facts["layers"].as_array().unwrap().len(), 3);
    assert_eq!(facts["layers"][0][0]["kv_heads"], 2);
    assert_eq!(facts["kv_f16_bytes_per_token"], 3 * 2 * (16 + 16) * 2);
    assert_eq!(facts["tokenizer"]["bos"], 314);
    assert_eq!(facts["chat_template"], true);
    let bytes: u64 = facts["types"]
        .as_object()
        .unwrap()
        .values()
        .map(|kind| kind["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(facts["bytes"], bytes);
    assert_eq!(facts["parameters"].as_u64().unwrap() * 2, bytes);

    let plan = results(&output(&["show", &tiny(), "--plan"]));
    assert!(
        plan.starts_with("plan: 3 layers, hidden 64, vocabulary 320\n") && plan.contains("attend"),
        "{plan}"
    );
    assert!(results(&output(&["show", &tiny(), "--template"])).contains("<|start_header_id|>"));
    let without = goldens().join("gemma3");
    assert!(refusal(&output(&["show", without.to_str().unwrap(), "--template"]), 1).contains("has no chat template"));
    let bare = results(&output(&["show", without.to_str().unwrap()]));
    assert!(
        bare.contains("tokenizer   none that can be used") && bare.contains("window"),
        "{bare}"
    );
}

#[test]
fn tokenize_gives_the_ids_of_the_reference() {
    let text: Value = serde_json::from_slice(&fs::read(goldens().join("llama3/text.json")).unwrap()).unwrap();
    let prompts = text["prompts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|prompt| prompt["messages"].is_null());
    for prompt in prompts {
        let (text, ids) = (prompt["text"].as_str().unwrap(), prompt["ids"].as_array().unwrap());
        // The reference begins with the token that begins a sequence.
        let expected: Vec<String> = ids[1..].iter().map(Value::to_string).collect();
        assert_eq!(
            results(&output(&["tokenize", &tiny(), text, "--ids"])).trim_end(),
            expected.join(",")
        );
        assert_eq!(
            results(&piped(&["tokenize", &tiny(), "--ids"], text.as_bytes())).trim_end(),
            expected.join(",")
        );
        let both = json(&output(&["tokenize", &tiny(), text, "--json"]));
        assert_eq!(both["ids"].as_array().unwrap(), &ids[1..]);
        assert_eq!(both["pieces"].as_array().unwrap().len(), ids.len() - 1);
        assert_eq!(
            results(&output(&["tokenize", &tiny(), text])).lines().count(),
            ids.len() - 1
        );
    }
}

#[test]
fn tokenize_takes_control_tokens_and_bytes_only_where_asked() {
    let ids = |arguments: &[&str]| {
        results(&output(
            &[&["tokenize", &tiny(), "<|eot_id|>", "--ids"], arguments].concat(),
        ))
    };
    assert_eq!(ids(&["--special"]), "318\n");
    assert!(ids(&[]).split(',').count() > 1);
    assert!(refusal(&piped(&["tokenize", &tiny()], b"a\xff"), 1).contains("not UTF-8"));
    assert_eq!(
        results(&piped(&["tokenize", &tiny(), "--special", "--ids"], b"a\xff"))
            .split(',')
            .count(),
        2
    );
}

fn read_logits(path: &str, folder: &str) -> (Vec<usize>, Vec<u32>) {
    // A checkpoint wants a configuration beside it.
    fs::copy(
        goldens().join("llama3/config.json"),
        Path::new(folder).join("config.json"),
    )
    .unwrap();
    let checkpoint = Checkpoint::open(Path::new(path)).unwrap();
    let info = checkpoint.tensor("logits").unwrap();
    assert_eq!(info.dtype, DType::F32);
    let mut values = vec![0.0; info.elements()];
    checkpoint.decode(info, &mut values).unwrap();
    (
        info.shape.clone(),
        values.iter().map(|value: &f32| value.to_bits()).collect(),
    )
}

#[test]
fn logits_are_the_same_bits_in_any_chunks() {
    let folder = Folder::new("logits");
    let write = |name: &str, more: &[&str]| {
        let file = folder.file(name);
        let ids = [
            "logits",
            &tiny(),
            "--ids",
            "314,51,263,220,80,84,72,66,74",
            "--out",
            &file,
        ];
        assert_eq!(results(&output(&[&ids, more].concat())), "");
        read_logits(&file, folder.0.to_str().unwrap())
    };
    let whole = write("whole.safetensors", &[]);
    assert_eq!(whole.0, [9, 320]);
    assert!(whole == write("single.safetensors", &["--chunk", "1"]));
    assert!(
        whole
            == write(
                "scalar.safetensors",
                &["--chunk", "4", "--threads", "1", "--isa", "scalar"]
            )
    );
    assert!(whole != write("exact.safetensors", &["--kv", "f32"]));
}

#[test]
fn logits_leave_nothing_behind_when_they_fail() {
    let folder = Folder::new("no-logits");
    let file = folder.file("x.safetensors");
    let error = refusal(&output(&["logits", &tiny(), "--ids", "1,320", "--out", &file]), 1);
    assert_eq!(
        error,
        "error: token 320 at index 1 is outside the vocabulary of 320 tokens"
    );
    let error = refusal(
        &output(&["logits", &tiny(), "--ids", "1", "--out", &folder.file("no/x")]),
        1,
    );
    assert!(error.starts_with("error: cannot write "), "{error}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[test]
fn verify_exits_with_its_verdict() {
    let passed = json(&output(&["verify", &tiny(), "--json", "--chunk", "3"]));
    assert_eq!(
        (passed["passed"].as_bool(), passed["case"].as_str()),
        (Some(true), Some("llama3"))
    );
    assert!(
        results(&output(&["verify", &tiny(), "--isa", "scalar", "--threads", "1"])).starts_with("llama3: passed\n")
    );
    let failed = output(&["verify", &tiny(), "--perturb", "rope_theta"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stdout).starts_with("llama3: FAILED\n"));
    assert!(refusal(&output(&["verify", &tiny(), "--perturb", "no_such_key"]), 1).contains("no_such_key"));
    assert!(refusal(&output(&["verify", goldens().to_str().unwrap()]), 1).contains("case.json"));
}

#[test]
fn run_gives_the_greedy_reply_of_the_reference() {
    let text: Value = serde_json::from_slice(&fs::read(goldens().join("llama3/text.json")).unwrap()).unwrap();
    let mut judged = 0;
    for prompt in text["prompts"].as_array().unwrap() {
        let words = match prompt["messages"].as_array().map(Vec::as_slice) {
            None => vec![prompt["text"].as_str().unwrap(), "--raw"],
            Some([message]) if message["role"] == "user" => vec![message["content"].as_str().unwrap()],
            Some(_) => continue,
        };
        let ids = prompt["greedy_ids"].as_array().unwrap();
        let exact = ["--activations", "f32", "--kv", "f32", "--max-tokens"];
        let reply = output(&[&["run", &tiny()], &words[..], &exact, &[&ids.len().to_string()]].concat());
        assert_eq!(
            results(&reply).trim_end(),
            prompt["greedy_text"].as_str().unwrap().trim_end()
        );
        judged += 1;
    }
    assert!(judged >= 3, "only {judged} prompts");
}

#[test]
fn run_takes_its_prompt_from_a_pipe_too() {
    let reply = |arguments: &[&str], input: &str| {
        let common = ["run", &tiny(), "-n", "8"];
        results(&piped(&[&common, arguments].concat(), input.as_bytes()))
    };
    let whole = reply(&["Hi, who are you?"], "");
    assert!(!whole.is_empty());
    assert_eq!(reply(&[], "Hi, who are you?\n"), whole);
    assert_eq!(
        reply(&["Sum up:"], "Hi, who are you?\n"),
        reply(&["Sum up:\n\nHi, who are you?"], "")
    );
    assert_eq!(reply(&["--raw", "Hi, "], "who"), reply(&["--raw", "Hi, who"], ""));
    assert!(refusal(&piped(&["run", &tiny()], b" \n"), 2).contains("no prompt"));
}

#[test]
fn run_draws_by_seed_and_stops_where_it_is_told() {
    let reply = |arguments: &[&str]| results(&output(&[&["run", &tiny(), "Hi", "-n", "12"], arguments].concat()));
    let drawn = reply(&["--temp", "1.5", "--seed", "1"]);
    assert_eq!(drawn, reply(&["--temp", "1.5", "-s", "1", "--threads", "1"]));
    assert_ne!(drawn, reply(&["--temp", "1.5", "--seed", "2"]));
    let stop: String = drawn.chars().skip(3).take(2).collect();
    let stopped = reply(&["--temp", "1.5", "--seed", "1", "--stop", &stop]);
    assert!(
        drawn.starts_with(stopped.trim_end_matches('\n')) && stopped.len() < drawn.len(),
        "{stopped:?} {drawn:?}"
    );
    assert!(!stopped.contains(&stop));
    assert_ne!(reply(&["--logit-bias", "65=100"]), reply(&[]));
}

#[test]
fn run_knows_the_filters_and_what_breaks_repetitions() {
    let reply = |arguments: &[&str]| {
        let always_an_a = ["run", &tiny(), "Hi", "-n", "12", "--logit-bias", "65=50"];
        results(&output(&[&always_an_a, arguments].concat()))
    };
    let repeated = reply(&[]);
    assert_eq!(reply(&["--temp", "1", "--typical-p", "0.1"]), repeated);
    let excluding = ["--temp", "1", "--xtc-probability", "1"];
    assert_eq!(reply(&excluding), repeated, "one likely token stays");
    assert_ne!(reply(&[&excluding[..], &["--xtc-threshold", "0"]].concat()), repeated);
    let dry = ["--dry-multiplier", "100", "--dry-allowed-length", "4"];
    assert_ne!(reply(&[&dry[..], &["--dry-breaker", "none"]].concat()), repeated);
    let breaker = repeated.chars().next().unwrap().to_string();
    assert_eq!(reply(&[&dry[..], &["--dry-breaker", &breaker]].concat()), repeated);
    assert_eq!(reply(&[&dry[..], &["--dry-window", "4"]].concat()), repeated);
}

#[test]
fn run_tells_times_on_standard_error() {
    let quiet = output(&["run", &tiny(), "Hi", "-n", "4"]);
    let verbose = output(&["run", &tiny(), "Hi", "-n", "4", "--verbose"]);
    assert_eq!(results(&quiet), results(&verbose));
    assert_eq!(String::from_utf8_lossy(&quiet.stderr), "");
    let told = String::from_utf8(verbose.stderr).unwrap();
    for word in [
        "load ",
        "prompt ",
        "reply   4 tokens",
        "prefill: 1 calls",
        "decode: 3 calls",
        "matmul",
        "GB/s",
    ] {
        assert!(told.contains(word), "{word:?} is not in\n{told}");
    }
}

#[test]
fn run_never_cuts_a_prompt() {
    let long = "word ".repeat(300);
    let error = refusal(&output(&["run", &tiny(), &long]), 1);
    assert!(error.contains("tokens, but the context holds 128"), "{error}");
    let full = output(&[
        "run",
        &tiny(),
        "--raw",
        "Hi",
        "--context",
        "8",
        "--logit-bias",
        "2=-inf",
        "--logit-bias",
        "318=-inf",
    ]);
    assert!(!results(&full).is_empty());
    assert!(String::from_utf8_lossy(&full.stderr).contains("the context of 8 tokens is full"));
}

#[test]
fn wrong_usage_exits_with_two() {
    let wrong: &[&[&str]] = &[
        &[],
        &["fly"],
        &["run"],
        &["run", "m", "p", "--temp", "hot"],
        &["run", "m", "p", "--top-k", "4"],
        &["run", "m", "p", "--typical-p", "0.5"],
        &["run", "m", "p", "--temp", "1", "--xtc-threshold", "0.2"],
        &["run", "m", "p", "--dry-base", "2"],
        &["run", "m", "p", "--raw", "--system", "x"],
        &["run", "m", "p", "--threads", "0"],
        &["run", "m", "p", "--isa", "sse"],
        &["logits", "m", "--ids", "1,x", "--out", "f"],
        &["logits", "m", "--ids", "1"],
        &["show", "m", "--plan", "--json"],
    ];
    for arguments in wrong {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
    let error = refusal(&output(&["run", "m", "p", "--temp", "1", "--top-p", "3"]), 2);
    assert_eq!(error, "error: top_p is 3: it must be from 0 to 1");
    assert!(results(&output(&["--help"])).contains("run"));
    assert!(results(&output(&["--version"])).starts_with("goldcrest "));
    assert!(results(&output(&["run", "--help"])).contains("DRY, temperature, top-k, typical, top-p, min-p, XTC"));
}

#[test]
fn models_that_are_not_there_are_one_clear_line() {
    for (command, name, told) in [
        ("run", "no/such/model.gguf", "no such file"),
        ("show", "nosuchalias", "no alias"),
        ("tokenize", "org/name", "org/name is not on this machine"),
    ] {
        let error = refusal(
            &output(&[command, name, if command == "show" { "--plan" } else { "x" }]),
            1,
        );
        assert!(error.contains(told), "{error}");
    }
    let mut offline = goldcrest(&["run", "org/name", "x", "--offline"]);
    assert!(refusal(&offline.env_remove("HF_HUB_OFFLINE").output().unwrap(), 1).contains("--offline"));
    let folder = Folder::new("broken");
    fs::write(folder.0.join("x.gguf"), b"GGUF").unwrap();
    assert!(refusal(&output(&["run", &folder.file("x.gguf"), "x"]), 1).contains("x.gguf"));
}

#[test]
fn list_and_pull_see_the_cache_alone() {
    let folder = Folder::new("cache");
    let snapshot = folder
        .0
        .join("models--org--name/snapshots/0123456789abcdef0123456789abcdef01234567");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(folder.0.join("models--org--name/refs")).unwrap();
    fs::write(
        folder.0.join("models--org--name/refs/main"),
        "0123456789abcdef0123456789abcdef01234567",
    )
    .unwrap();
    fs::write(snapshot.join("tiny-Q8_0.gguf"), [0; 1500]).unwrap();
    let with_cache = |arguments: &[&str]| goldcrest(arguments).env("HF_HUB_CACHE", &folder.0).output().unwrap();
    assert_eq!(results(&with_cache(&["list", "-q"])), "org/name\n");
    let line = results(&with_cache(&["ls"]));
    assert!(
        line.contains("org/name") && line.contains("1.5 kB") && line.contains("0123456789ab "),
        "{line}"
    );
    let list = json(&with_cache(&["list", "--json"]));
    assert_eq!(
        (list[0]["bytes"].as_u64(), list[0]["revisions"][0].as_str()),
        (Some(1500), Some("main"))
    );
    assert!(
        results(&with_cache(&["pull", "org/name"]))
            .trim_end()
            .ends_with("tiny-Q8_0.gguf")
    );
    assert!(refusal(&with_cache(&["pull", "org/other"]), 1).contains("HF_HUB_OFFLINE"));
}

#[test]
fn a_closed_pipe_ends_quietly() {
    for arguments in [
        &["show", &tiny(), "--plan"][..],
        &["run", &tiny(), "Hi"],
        &["completions", "bash"],
    ] {
        let mut child = goldcrest(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), String::from_utf8_lossy(&output.stderr)),
            (Some(0), "".into()),
            "{arguments:?}"
        );
    }
}

#[test]
fn completions_name_the_commands() {
    let script = results(&output(&["completions", "bash"]));
    assert!(
        ["run", "verify", "tokenize"]
            .iter()
            .all(|command| script.contains(command))
    );
}

/// The real model, where `cargo xtask fixtures` has put it.
fn smollm2() -> Option<String> {
    let folder = std::env::var_os("GOLDCREST_FIXTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fixtures"),
        PathBuf::from,
    );
    let file = folder.join("smollm2-135m-instruct-q4_1.gguf");
    file.exists().then(|| file.to_str().unwrap().to_owned())
}

#[test]
fn a_real_model_knows_the_capital_of_france() {
    let Some(model) = smollm2() else { return };
    let reply = output(&["run", &model, "What is the capital of France?", "-n", "40"]);
    assert_eq!(results(&reply).trim_end(), "The capital of France is Paris.");
    assert_eq!(String::from_utf8_lossy(&reply.stderr), "");
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_reply_with_its_exit_code() {
    let Some(model) = smollm2() else { return };
    let endless = ["run", &model, "Count to a million.", "--logit-bias", "2=-inf"];
    let mut child = goldcrest(&endless)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    assert!(
        Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stderr)),
        (Some(130), "".into())
    );
    assert!(rest.ends_with(b"\n"));
}
