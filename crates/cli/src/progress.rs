//! Progress bars of downloads, and of what takes long.

use goldcrest_hub::{Environment, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::{can_draw, tell};

const STEPS_STYLE: &str = "{wide_bar} {pos}/{len} {msg} {eta}";
const STYLE: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// Draws bars on a terminal; elsewhere only tells what takes long.
pub struct Bars {
    drawn: bool,
    /// The bar of one file.
    bar: Option<(String, ProgressBar)>,
}

impl Bars {
    pub fn new(environment: &Environment) -> Bars {
        Bars {
            drawn: can_draw() && !environment.progress_bars_disabled,
            bar: None,
        }
    }

    pub fn show(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Waiting { file } => tell(format_args!("{file}: waiting for another process that downloads it")),
            Progress::Package { package, version } => {
                tell(format_args!(
                    "fetching the Python package {package} {version} with pip; this takes a while"
                ));
            }
            Progress::Bytes {
                file,
                done_bytes,
                total_bytes,
            } => self.advance(file, done_bytes, total_bytes),
            Progress::Done { file } => {
                if let Some((_, bar)) = self.bar.take_if(|(name, _)| name == file) {
                    bar.finish();
                }
            }
            _ => {}
        }
    }

    fn advance(&mut self, file: &str, done_bytes: u64, total_bytes: u64) {
        if !self.drawn {
            return;
        }
        let (_, bar) = match self.bar.take_if(|(name, _)| name == file) {
            Some(bar) => self.bar.insert(bar),
            None => self.bar.insert((file.to_owned(), new_bar(file, total_bytes))),
        };
        bar.set_position(done_bytes);
    }
}

fn new_bar(file: &str, total_bytes: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total_bytes), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(STYLE) {
        bar.set_style(style);
    }
    bar.set_message(file.to_owned());
    bar
}

/// A bar of work whose amount is known, drawn on a terminal alone.
pub struct Steps(ProgressBar);

impl Steps {
    pub fn new(unit: &'static str, total: usize) -> Steps {
        let bar = match can_draw() {
            true => ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr()),
            false => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template(STEPS_STYLE) {
            bar.set_style(style);
        }
        Steps(bar.with_message(unit))
    }

    pub fn advance(&mut self, done: usize) {
        self.0.inc(done as u64);
    }

    pub fn finish(self) {
        self.0.finish_and_clear();
    }
}
