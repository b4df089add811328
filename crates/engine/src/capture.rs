//! Copies of the residual stream, taken while sessions are fed.

use goldcrest_model::backend::{Interrupted, OpOutput, Probe, Span};
use goldcrest_model::plan::Op;

use crate::engine::Engine;

/// What to copy of one session. Boundary i is the stream that enters layer i; the last one, whose number is that of layers, leaves the last
/// layer. Each includes everything that the layers before add, and what steering does to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureRequest {
    /// Rising.
    pub boundaries: Vec<usize>,
    /// Rising.
    pub positions: Vec<usize>,
}

/// Copies residuals of the sessions of a batch, or of one; to be passed as the probe of [`crate::Watch`] with every chunk. Feeds of a batch
/// are told apart by their order, which must be the same each time. However they are cut, the copies are the same.
#[derive(Clone, Debug)]
pub struct Capture {
    hidden: usize,
    feeds: Vec<Captured>,
    /// Rows of the call that is running.
    spans: Vec<Span>,
}

/// Copies of one session.
#[derive(Clone, Debug)]
pub struct Captured {
    request: CaptureRequest,
    /// `[boundaries, positions, hidden]`.
    values: Vec<f32>,
    /// Which rows have been seen: `[boundaries, positions]`.
    seen: Vec<bool>,
}

/// Why nothing can be captured as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The model has fewer layers.
    #[error("there is no boundary {boundary}: 0 to {last} enter the layers of the model and leave the last")]
    BoundaryOutside {
        /// The one asked for.
        boundary: usize,
        /// The last.
        last: usize,
    },
    /// Something twice, or out of order.
    #[error("{what} to capture must rise; {number} does not")]
    Order {
        /// What was listed.
        what: &'static str,
        /// The first wrong one.
        number: usize,
    },
    /// The copies would not fit in memory.
    #[error("{boundaries} boundaries at {positions} positions are too many to hold")]
    TooMany {
        /// Boundaries asked for.
        boundaries: usize,
        /// Positions asked for.
        positions: usize,
    },
}

impl Capture {
    /// A capture for feeds of these requests, in the order of a batch; one for a session that is fed alone.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn new(engine: &Engine, requests: Vec<CaptureRequest>) -> Result<Capture, CaptureError> {
        let (hidden, last) = (engine.spec().hidden, engine.spec().layers.len());
        let captured = |request: CaptureRequest| {
            check_order("boundaries", &request.boundaries)?;
            check_order("positions", &request.positions)?;
            if let Some(&boundary) = request.boundaries.last().filter(|boundary| **boundary > last) {
                return Err(CaptureError::BoundaryOutside { boundary, last });
            }
            Captured::new(request, hidden)
        };
        Ok(Capture {
            hidden,
            feeds: requests.into_iter().map(captured).collect::<Result<_, _>>()?,
            spans: Vec::new(),
        })
    }

    /// What has been copied of each feed.
    pub fn feeds(&self) -> &[Captured] {
        &self.feeds
    }

    fn keep(&mut self, boundary: usize, stream: &[f32]) {
        let mut first = 0;
        for span in &self.spans {
            let rows = &stream[first * self.hidden..][..span.rows * self.hidden];
            if let Some(captured) = self.feeds.get_mut(span.feed) {
                captured.keep(boundary, span.start, rows);
            }
            first += span.rows;
        }
    }
}

impl Captured {
    fn new(request: CaptureRequest, hidden: usize) -> Result<Captured, CaptureError> {
        let (boundaries, positions) = (request.boundaries.len(), request.positions.len());
        let too_many = CaptureError::TooMany { boundaries, positions };
        let rows = boundaries.saturating_mul(positions);
        let (mut values, mut seen) = (Vec::new(), Vec::new());
        let reserved = values
            .try_reserve_exact(rows.saturating_mul(hidden))
            .and_then(|()| seen.try_reserve_exact(rows));
        if reserved.is_err() {
            return Err(too_many);
        }
        values.resize(rows * hidden, 0.0);
        seen.resize(rows, false);
        Ok(Captured { request, values, seen })
    }

    /// What was asked for.
    pub fn request(&self) -> &CaptureRequest {
        &self.request
    }

    /// The stream at a boundary that was asked for, `[positions, hidden]`. Positions that have not been fed are zeros.
    pub fn residual(&self, boundary: usize) -> Option<&[f32]> {
        let index = self.request.boundaries.binary_search(&boundary).ok()?;
        let len = self.values.len() / self.request.boundaries.len();
        Some(&self.values[index * len..][..len])
    }

    /// Whether everything that was asked for has been fed.
    pub fn is_whole(&self) -> bool {
        self.seen.iter().all(|seen| *seen)
    }

    /// Keeps what is wanted of rows that begin at position `start`.
    fn keep(&mut self, boundary: usize, start: usize, rows: &[f32]) {
        let Ok(index) = self.request.boundaries.binary_search(&boundary) else {
            return;
        };
        let positions = &self.request.positions;
        let hidden = self.values.len() / self.seen.len().max(1);
        let from = positions.partition_point(|position| *position < start);
        for (at, &position) in positions.iter().enumerate().skip(from) {
            let Some(row) = rows
                .get((position - start) * hidden..)
                .and_then(|rows| rows.get(..hidden))
            else {
                return;
            };
            let at = index * positions.len() + at;
            self.values[at * hidden..][..hidden].copy_from_slice(row);
            self.seen[at] = true;
        }
    }
}

impl Probe for Capture {
    fn before_call(&mut self, spans: &[Span]) {
        self.spans.clear();
        self.spans.extend_from_slice(spans);
    }

    fn after_op(&mut self, _: usize, op: &Op, output: OpOutput) -> Result<(), Interrupted> {
        if let (Op::Boundary { layer, .. }, OpOutput::Stream(stream)) = (op, output) {
            self.keep(*layer, stream);
        }
        Ok(())
    }
}

fn check_order(what: &'static str, numbers: &[usize]) -> Result<(), CaptureError> {
    match numbers.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some(pair) => Err(CaptureError::Order { what, number: pair[1] }),
        None => Ok(()),
    }
}
