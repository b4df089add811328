//! From the name that was typed to an open model.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use goldcrest::prompts::Prompts;
use goldcrest_engine::{Engine, EngineOptions};
use goldcrest_format::Checkpoint;
use goldcrest_hub::{Environment, Hub, HubError, Located, Plan, PlanSource};

use crate::args::ModelArgs;
use crate::output::{note, size, tell};
use crate::progress::Bars;

/// A model ready to reply.
pub struct Model {
    pub engine: Engine,
    pub prompts: Prompts,
    /// Wall time of loading it.
    pub load_time: Duration,
}

impl Model {
    /// Finds, downloads where needed and loads a model, with options that depend on it; `raw` leaves its chat template out.
    pub fn open(
        args: &ModelArgs,
        options: impl FnOnce(&Checkpoint) -> anyhow::Result<EngineOptions>,
        raw: bool,
    ) -> anyhow::Result<Model> {
        let path = locate(args)?;
        let started = Instant::now();
        let checkpoint = Checkpoint::open(&path)?;
        let options = options(&checkpoint).with_context(|| format!("cannot run {}", path.display()))?;
        let open_prompts = || {
            if raw {
                Prompts::without_template(&checkpoint)
            } else {
                Prompts::open(&checkpoint)
            }
        };
        // A large vocabulary takes one thread as long as weights take all threads, so neither waits for the other.
        let (prompts, engine) = thread::scope(|scope| {
            let prompts = scope.spawn(open_prompts);
            let engine = Engine::open(&checkpoint, options);
            (prompts.join().unwrap_or_else(|panic| resume_unwind(panic)), engine)
        });
        let prompts = prompts.with_context(|| format!("the words of {}", path.display()))?;
        let engine = engine.with_context(|| format!("cannot run {}", path.display()))?;
        Ok(Model {
            engine,
            prompts,
            load_time: started.elapsed(),
        })
    }
}

/// Finds a model and opens its files, without loading weights.
pub fn open_checkpoint(args: &ModelArgs) -> anyhow::Result<(PathBuf, Checkpoint)> {
    let path = locate(args)?;
    let checkpoint = Checkpoint::open(&path)?;
    Ok((path, checkpoint))
}

/// Finds a model on this machine, or downloads it, after telling from where, how much and under which licence.
pub fn locate(args: &ModelArgs) -> anyhow::Result<PathBuf> {
    let hub = Hub::new(Environment::from_process());
    match hub.resolve(&args.model) {
        Ok(located) => Ok(located.path),
        Err(error) if !error.is_not_local() => Err(error.into()),
        Err(_) if args.offline => {
            bail!(
                "{} is not on this machine, and --offline forbids to download it",
                args.model
            )
        }
        Err(_) => Ok(download(&hub, &args.model)?.path),
    }
}

/// Downloads a model.
pub fn download(hub: &Hub, name: &str) -> Result<Located, HubError> {
    let plan = hub.plan_download(name)?;
    announce(&plan);
    let mut bars = Bars::new(hub.environment());
    hub.fetch(&plan, &mut |progress| bars.show(progress))
}

fn announce(plan: &Plan) {
    let source = match &plan.source {
        PlanSource::Hub {
            endpoint,
            repository,
            commit,
        } => format!("{endpoint}/{repository} (commit {commit})"),
        PlanSource::Package { package, version } => format!("the Python package {package} {version}"),
    };
    if let Some(failure) = &plan.hub_failure {
        note(format_args!("the hub is not used: {failure}"));
    }
    let license = plan.license.as_deref().unwrap_or("not stated");
    tell(format_args!("{} comes from {source}", plan.name));
    tell(format_args!(
        "size {} ({} to download), licence {license}",
        size(plan.bytes()),
        size(plan.missing_bytes())
    ));
}
