//! `list`: the models in the cache.

use std::io::{Write, stdout};

use goldcrest_hub::{CachedModel, Environment, Hub};
use serde_json::{Value, json};

use crate::args::ListArgs;
use crate::output::size;

/// Characters of a commit that tell it from others.
const SHORT_COMMIT: usize = 12;

pub fn run(args: &ListArgs) -> anyhow::Result<()> {
    let models = Hub::new(Environment::from_process()).list()?;
    let mut out = stdout().lock();
    if args.json {
        let list: Vec<Value> = models.iter().map(as_json).collect();
        writeln!(out, "{:#}", Value::Array(list))?;
        return Ok(());
    }
    let names: Vec<String> = models.iter().map(name).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    for (name, model) in names.iter().zip(&models) {
        match args.quiet {
            true => writeln!(out, "{name}")?,
            false => writeln!(
                out,
                "{name:width$}  {:>8}  {:SHORT_COMMIT$.SHORT_COMMIT$}  {}",
                size(model.bytes()),
                model.commit,
                model.revisions.join(", ")
            )?,
        }
    }
    Ok(())
}

/// A name that stands for this very commit; the usual revision needs no saying.
fn name(model: &CachedModel) -> String {
    if model.revisions.iter().any(|revision| revision == "main") {
        return model.repository.clone();
    }
    let revision = model.revisions.first().unwrap_or(&model.commit);
    format!("{}@{revision}", model.repository)
}

fn as_json(model: &CachedModel) -> Value {
    let files: Vec<Value> = model
        .files
        .iter()
        .map(|file| json!({ "name": file.name, "bytes": file.bytes }))
        .collect();
    json!({
        "name": name(model),
        "repository": model.repository,
        "commit": model.commit,
        "revisions": model.revisions,
        "path": model.path.display().to_string(),
        "bytes": model.bytes(),
        "files": files,
    })
}
