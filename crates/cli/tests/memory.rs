//! Memory as users of the command plan and limit it.

mod support;

use std::fs;

use support::{Folder, goldens, json, output, refusal, results, tiny};

/// The least limit that a refusal names, to be typed in again.
fn least(refused: &str) -> String {
    let before = refused.split(" MiB are needed").next();
    let mib = before.and_then(|text| text.rsplit(' ').next());
    format!("{}MiB", mib.unwrap_or_default())
}

/// MiB of a part that a refusal names.
fn part(refused: &str, name: &str) -> u64 {
    let before = refused.split(&format!(" MiB {name}")).next();
    let mib = before.and_then(|text| text.rsplit(' ').next()?.parse().ok());
    mib.unwrap_or_else(|| panic!("no {name} in {refused}"))
}

/// MiB of the states of a sequence of the tiny model.
fn state_mib(context: usize) -> u64 {
    let plan = json(&output(&[
        "plan",
        &tiny(),
        "--no-probe",
        "--context",
        &context.to_string(),
        "--json",
    ]));
    let bytes = plan["bytes"]["keys_values_and_states"].as_u64().unwrap();
    bytes.div_ceil(1 << 20)
}

#[test]
fn memory_is_planned() {
    let table = results(&output(&["plan", &tiny(), "--no-probe", "--context", "64"]));
    assert!(
        table.starts_with("weights ") && table.contains("\nfor 64 positions, 512 rows a call\n"),
        "{table}"
    );
    let plan = json(&output(&["plan", &tiny(), "--no-probe", "--json"]));
    assert_eq!(plan["context"], 128, "what the model was trained for");
    let parts = plan["bytes"].as_object().unwrap().values();
    let sum: u64 = parts.map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(plan["all_bytes"], sum);
    for wrong in ["much", "0"] {
        assert!(refusal(&output(&["plan", &tiny(), "--memory", wrong]), 2).contains("is no size"));
    }
    // Numbers at the end of what there is.
    let most = usize::MAX.to_string();
    assert!(refusal(&output(&["plan", &tiny(), "-t", &most]), 1).contains("threads asked for"));
    results(&output(&["plan", &tiny(), "--no-probe", "--context", &most]));
    assert!(
        refusal(&output(&["plan", &tiny(), "--context", &most, "--memory", "1GiB"]), 1).contains("are needed at least")
    );
}

/// Every command that feeds a model, and what it takes of memory beside it.
#[test]
fn a_limit_is_kept_or_refused_with_one_that_is_enough() {
    let folder = Folder::new("limits");
    let (model, out) = (tiny(), folder.file("out.safetensors"));
    let texts = ["a", "b"].map(|name| folder.file(name));
    for (file, text) in texts.iter().zip(["It was the best of times.\n", "It was the worst.\n"]) {
        fs::write(file, text).unwrap();
    }
    let [text, other] = &texts;
    let commands: &[(&[&str], &str)] = &[
        (&["plan", &model], "program and vocabulary"),
        (&["run", &model, "Hi", "-n", "2"], "logits"),
        (&["bench", &model, "-p", "3", "-n", "2", "-r", "1"], "calls"),
        (
            &["bench", &model, "-p", "3", "-n", "0", "-r", "1", "--roofline"],
            "probe of the machine",
        ),
        (&["perplexity", &model, text, "--context", "9"], "logits of a window"),
        (
            &["logits", &model, "--ids", "1,2", "--out", &out],
            "logits of a chunk (--chunk)",
        ),
        (&["capture", &model, "--ids", "1,2", "--out", &out], "streams"),
        (
            &[
                "steer",
                "make",
                &model,
                "--positive",
                text,
                "--negative",
                other,
                "--out",
                &out,
            ],
            "residuals of the prompts",
        ),
    ];
    for (words, beside) in commands {
        let limited = |limit: &str| output(&[*words, &["--memory", limit]].concat());
        let refused = refusal(&limited("1MiB"), 1);
        assert!(refused.contains(" and 1048576 bytes may be taken: "), "{refused}");
        assert!(part(&refused, beside) > 0, "{words:?}: {refused}");
        assert!(!fs::exists(&out).unwrap(), "{words:?}");
        results(&limited(&least(&refused)));
        let _ = fs::remove_file(&out);
    }
    let probing = ["bench", &model, "-p", "3", "-n", "0", "--roofline", "--memory", "1MiB"];
    let probing = refusal(&output(&probing), 1);
    assert_eq!(part(&probing, "probe of the machine"), 512);
    assert!(least(&probing).trim_end_matches("MiB").parse::<u64>().unwrap() > 512);
}

#[test]
fn every_command_plans_for_the_sequences_that_it_feeds() {
    const LENGTH: usize = 20_000;
    let folder = Folder::new("sequences");
    let (model, out) = (tiny(), folder.file("out.safetensors"));
    let texts = ["short", "long"].map(|name| folder.file(name));
    fs::write(&texts[0], "a b\n").unwrap();
    fs::write(&texts[1], format!("b a\n{}\n", "a ".repeat(LENGTH / 2))).unwrap();
    let [short, long] = &texts;
    let ids = results(&output(&["tokenize", &model, &"a ".repeat(LENGTH / 2), "--ids"]));
    let (ids, length) = (ids.trim_end(), ids.split(',').count());
    let states = |words: &[&str]| {
        let refused = refusal(&output(&[words, &["--memory", "1MiB"]].concat()), 1);
        part(&refused, "keys, values and states")
    };
    assert!(state_mib(length) > 2);
    assert_eq!(
        states(&["perplexity", &model, short, "--context", &length.to_string()]),
        state_mib(length)
    );
    assert_eq!(
        states(&["logits", &model, "--ids", ids, "--out", &out]),
        state_mib(length)
    );
    assert_eq!(
        states(&["capture", &model, "--ids", ids, "--out", &out]),
        state_mib(length)
    );
    // A token begins the prompt.
    let make = [
        "steer",
        "make",
        &model,
        "--positive",
        short,
        "--negative",
        long,
        "--out",
        &out,
    ];
    assert_eq!(states(&make), state_mib(length + 1));
    // What comes before is a sequence too.
    let of_one = json(&output(&["plan", &model, "--no-probe", "--context", "20", "--json"]));
    let of_one = of_one["bytes"]["keys_values_and_states"].as_u64().unwrap();
    let batch = ["bench", &model, "-p", "0", "-n", "11", "-d", "9", "-b", "2,400"];
    assert_eq!(states(&batch), (401 * of_one).div_ceil(1 << 20));
}

#[test]
fn results_do_not_depend_on_the_limit() {
    let model = tiny();
    let reply = |memory: &[&str]| results(&output(&[&["run", &model, "-n", "8", "Hi"], memory].concat()));
    assert_eq!(reply(&["--memory", "auto"]), reply(&[]));
    let folder = Folder::new("limited");
    let logits = |name: &str, memory: &[&str]| {
        let out = folder.file(name);
        let words = ["logits", &model, "--ids", "314,51,263,220", "--out", &out];
        results(&output(&[&words, memory].concat()));
        fs::read(out).unwrap()
    };
    assert_eq!(
        logits("a", &["--memory", "200MiB", "--expert-eviction", "least-recent"]),
        logits("b", &[])
    );
}

/// What `run` would refuse when it loads.
#[test]
fn memory_for_experts_that_cannot_be_is_refused_by_the_plan() {
    let dense = refusal(&output(&["plan", &tiny(), "--expert-memory", "1GiB"]), 1);
    assert!(dense.contains("the model has no experts"), "{dense}");
    let mixture = goldens().join("mixtral");
    let planned = |size: &str| output(&["plan", mixture.to_str().unwrap(), "--no-probe", "--expert-memory", size]);
    let little = refusal(&planned("1"), 1);
    assert!(little.contains("1 bytes are too little for "), "{little}");
    let least: usize = little
        .split(" takes ")
        .nth(1)
        .and_then(|text| text.strip_suffix(" bytes")?.parse().ok())
        .unwrap();
    assert!(refusal(&planned(&(least - 1).to_string()), 1).contains("too little"));
    assert!(results(&planned(&least.to_string())).contains("experts are read when they are wanted"));
}

#[test]
fn speeds_are_predicted_from_what_was_measured() {
    let mixture = goldens().join("mixtral");
    let words = [
        "plan",
        mixture.to_str().unwrap(),
        "--expert-memory",
        "64KiB",
        "--context",
        "90",
    ];
    let plan = json(&output(&[&words[..], &["--json"]].concat()));
    for (group, keys) in [
        ("experts", &["bytes", "count"][..]),
        (
            "probe",
            &["read_gb_per_s", "int8_gop_per_s", "f32_gop_per_s", "disk_gb_per_s"],
        ),
        ("predicted", &["decode_tokens_per_s", "prefill_tokens_per_s"]),
    ] {
        for key in keys {
            assert!(plan[group][key].as_f64().unwrap() > 0.0, "{group}.{key} of {plan}");
        }
    }
    assert_eq!(plan["predicted"]["prefill_tokens"], 90);
    assert!(plan["experts"]["kept"].as_u64() < plan["experts"]["count"].as_u64());
    let unmeasured = json(&output(&[&words[..], &["--json", "--no-probe"]].concat()));
    assert!(unmeasured["probe"].is_null() && unmeasured["predicted"].is_null());
    assert_eq!(unmeasured["experts"], plan["experts"]);
    let told = results(&output(&words));
    for part in [
        "stay in memory",
        "past the page cache",
        "predicted: a reply ",
        "choose experts evenly",
    ] {
        assert!(told.contains(part), "{part:?} is not in\n{told}");
    }
    // Everything in memory: nothing is read while it runs.
    let dense = json(&output(&["plan", &tiny(), "--json"]));
    assert!(dense["experts"].is_null() && dense["probe"]["disk_gb_per_s"].is_null());
    assert!(dense["predicted"]["decode_tokens_per_s"].as_f64().unwrap() > 0.0);
}
