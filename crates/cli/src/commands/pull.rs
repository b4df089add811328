//! `pull`: a model into the cache.

use std::io::{Write, stdout};

use goldcrest_hub::{Environment, Hub};

use crate::args::PullArgs;
use crate::model::download;
use crate::output::note;

pub fn run(args: &PullArgs) -> anyhow::Result<()> {
    let hub = Hub::new(Environment::from_process());
    let located = match hub.resolve(&args.name) {
        Ok(located) => {
            note(format_args!("{} is on this machine already", args.name));
            located
        }
        Err(error) if error.is_not_local() => download(&hub, &args.name)?,
        Err(error) => return Err(error.into()),
    };
    writeln!(stdout(), "{}", located.path.display())?;
    Ok(())
}
