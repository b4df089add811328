//! What happens to a session while it is fed: cancelled by another thread, interrupted by a failing op.

use std::sync::atomic::{AtomicBool, Ordering};

use goldcrest_engine::{Interrupted, Op, OpOutput, Probe};

/// What a probe does to a feed.
#[derive(Default)]
pub struct Script<'a> {
    pub ops_per_call: usize,
    pub cancel: Option<&'a AtomicBool>,
    /// The call that the flag goes up in; `None`: it is up before.
    pub cancel_during: Option<usize>,
    /// Fail after so many ops.
    pub interrupt_after: Option<usize>,
    /// Ops seen so far.
    pub ops: usize,
}

/// How a feed ends.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    Done,
    /// After so many calls.
    Cancelled {
        calls: usize,
    },
    /// After so many calls and a part of one.
    Interrupted {
        calls: usize,
    },
}

impl Script<'_> {
    /// The end of a feed of so many calls.
    pub fn ending(&self, calls: usize) -> Ending {
        if let Some(ops) = self.interrupt_after.filter(|ops| *ops < calls * self.ops_per_call) {
            return Ending::Interrupted {
                calls: ops / self.ops_per_call,
            };
        }
        match (self.cancel, self.cancel_during) {
            (Some(_), None) => Ending::Cancelled { calls: 0 },
            // A flag that goes up during the last call comes too late.
            (Some(_), Some(call)) if call + 1 < calls => Ending::Cancelled { calls: call + 1 },
            _ => Ending::Done,
        }
    }
}

impl Probe for Script<'_> {
    fn after_op(&mut self, index: usize, _: &Op, _: OpOutput) -> Result<(), Interrupted> {
        let op = self.ops;
        self.ops += 1;
        if let (Some(cancel), Some(call)) = (self.cancel, self.cancel_during)
            && op == call * self.ops_per_call
        {
            cancel.store(true, Ordering::Relaxed);
        }
        if self.interrupt_after == Some(op) {
            Err(Interrupted { op: index })
        } else {
            Ok(())
        }
    }
}
