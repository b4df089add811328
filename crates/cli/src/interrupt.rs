//! Ctrl-C: while somebody watches, the first one asks to stop; otherwise, and the second time, it ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::EXIT_INTERRUPTED;

static WATCHED: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Takes Ctrl-C over from the operating system.
///
/// # Errors
/// If the system refuses.
pub fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if !WATCHED.load(Ordering::SeqCst) || INTERRUPTED.swap(true, Ordering::SeqCst) {
            std::process::exit(EXIT_INTERRUPTED.into());
        }
    })?;
    Ok(())
}

/// While this lives, Ctrl-C only sets [`Watch::flag`].
pub struct Watch(());

/// Begins to watch, with the flag unset.
pub fn watch() -> Watch {
    INTERRUPTED.store(false, Ordering::SeqCst);
    WATCHED.store(true, Ordering::SeqCst);
    Watch(())
}

impl Watch {
    /// Set by Ctrl-C.
    pub fn flag(&self) -> &'static AtomicBool {
        &INTERRUPTED
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.store(false, Ordering::SeqCst);
    }
}
