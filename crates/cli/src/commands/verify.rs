//! `verify`: a golden case, judged.

use std::io::{Write, stdout};

use anyhow::Context;
use goldcrest_engine::EngineOptions;
use goldcrest_verify::{Options, Report, verify};

use super::Outcome;
use crate::args::VerifyArgs;

pub fn run(args: &VerifyArgs) -> anyhow::Result<Outcome> {
    let options = Options {
        chunk: args.chunk,
        model: args.model.clone(),
        perturb: args.perturb.clone(),
        engine: EngineOptions {
            threads: args.threads,
            isa: args.isa,
            ..EngineOptions::exact()
        },
    };
    let report = verify(&args.case, &options).with_context(|| format!("cannot run {}", args.case.display()))?;
    let mut out = stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        write!(out, "{}", as_text(&report))?;
    }
    Ok(if report.passed { Outcome::Done } else { Outcome::Failed })
}

fn as_text(report: &Report) -> String {
    let verdict = if report.passed { "passed" } else { "FAILED" };
    let mut text = format!(
        "{}: {verdict}\n  logits       {:.2e} of {:.2e} ({:.1} × the reference's own noise)\n  steps        {:.2e} of {:.2e}\n",
        report.case,
        report.logits_max_abs,
        report.bound,
        report.ratio_to_noise_floor,
        report.step_logits_max_abs,
        report.bound
    );
    if !report.wrong_greedy_steps.is_empty() {
        text.push_str(&format!("  wrong ids    at steps {:?}\n", report.wrong_greedy_steps));
    }
    if let Some(first) = report.wrong_residuals.first() {
        text.push_str(&format!(
            "  first wrong  what enters layer {}, by {:.2e} standard deviations\n",
            first.layer, first.relative
        ));
    }
    text.push_str(&format!("  hash         {}\n", report.logits_hash));
    text
}
