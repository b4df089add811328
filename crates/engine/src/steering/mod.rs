//! Steering: what is done to the residual stream of a session while it is fed.
//!
//! A [`ControlVector`] has a direction for some layers; a [`Steer`] does something with it to what each of those layers leaves, that is to
//! the stream after everything that the layer adds, which the next layer reads. [`Engine::steering`] makes a [`Steering`] of several,
//! [`crate::Session::steer`] gives it to a session. Rows of other sessions in the same calls are not touched.

mod file;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::sync::Arc;

use goldcrest_model::backend::{StreamStep, StreamSteps};

use crate::digest::{Bytes32, Digester};
use crate::engine::Engine;

pub use file::ControlVectorError;

/// Directions by layer, all equally wide and finite. Layer n's is for what layer n leaves, as in llama.cpp's `direction.n`.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlVector {
    directions: BTreeMap<usize, Arc<[f32]>>,
}

/// Something done to a row x of the stream. "Along" is in units of length: the component of x in the direction.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// x + scale · direction, as llama.cpp does it.
    Add { vector: ControlVector, scale: f32 },
    /// Takes scale times the component along the direction away.
    Ablate { vector: ControlVector, scale: f32 },
    /// Moves x along the direction so far that its component is in `min..=max`.
    Clamp { vector: ControlVector, min: f32, max: f32 },
    /// Gives x the length back that it had before the first steer of this layer.
    Renorm,
}

/// An operation, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Steer {
    /// What is done.
    pub operation: Operation,
    /// Layers whose output it is done to, of those that the vector has a direction for. `None`: all of them.
    pub layers: Option<RangeInclusive<usize>>,
}

/// Steers of one model, ready to be applied one after the other. Clones share everything.
#[derive(Clone, Debug)]
pub struct Steering {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// By boundary: what layer n leaves is boundary n + 1.
    steps: Vec<Vec<StreamStep>>,
    hidden: usize,
    digest: Bytes32,
}

/// Why steers do not fit a model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SteeringError {
    /// Nothing to do.
    #[error("there is nothing to steer with: at least one steer is needed")]
    Empty,
    /// The vector is of another model.
    #[error("steer {steer}: its directions have {found} numbers, the residual stream of the model has {expected}")]
    Width {
        /// Index of the steer.
        steer: usize,
        /// Numbers of a direction.
        found: usize,
        /// Width of the stream.
        expected: usize,
    },
    /// A layer that the model does not have.
    #[error("steer {steer}: there is no layer {layer}; the model's layers are 0 to {last}")]
    LayerOutside {
        /// Index of the steer.
        steer: usize,
        /// The layer.
        layer: usize,
        /// The model's last layer.
        last: usize,
    },
    /// The vector has nothing there.
    #[error("steer {steer}: there is no direction for any of the layers {first} to {last}")]
    NoDirection {
        /// Index of the steer.
        steer: usize,
        /// First layer asked for.
        first: usize,
        /// Last layer asked for.
        last: usize,
    },
    /// A direction without a length.
    #[error("steer {steer}: the direction of layer {layer} is zero, and nothing is along it")]
    ZeroDirection {
        /// Index of the steer.
        steer: usize,
        /// Its layer.
        layer: usize,
    },
    /// A scale or bound that is no finite number, or bounds out of order.
    #[error("steer {steer}: {what}")]
    Number {
        /// Index of the steer.
        steer: usize,
        /// What is wrong.
        what: &'static str,
    },
}

impl ControlVector {
    /// Layers with a direction, rising.
    pub fn layers(&self) -> impl Iterator<Item = usize> {
        self.directions.keys().copied()
    }

    /// The direction of a layer.
    pub fn direction(&self, layer: usize) -> Option<&[f32]> {
        self.directions.get(&layer).map(|direction| &**direction)
    }

    /// Numbers of a direction.
    pub fn width(&self) -> usize {
        self.directions.values().next().map_or(0, |direction| direction.len())
    }
}

impl Engine {
    /// Makes a steering of steers, which are applied in this order.
    ///
    /// # Errors
    /// [`SteeringError`], if a steer does not fit the model or does nothing that can be meant.
    pub fn steering(&self, steers: &[Steer]) -> Result<Steering, SteeringError> {
        let (hidden, layers) = (self.spec().hidden, self.spec().layers.len());
        if steers.is_empty() {
            return Err(SteeringError::Empty);
        }
        let mut steps = vec![Vec::new(); layers + 1];
        for (index, steer) in steers.iter().enumerate() {
            let fitted = Fitted { index, steer, hidden };
            for layer in fitted.layers(layers)? {
                let steps = &mut steps[layer + 1];
                // Alone, it changes nothing.
                let idle = steer.operation == Operation::Renorm && steps.is_empty();
                steps.extend(fitted.step(layer)?.filter(|_| !idle));
            }
        }
        Ok(Steering {
            inner: Arc::new(Inner {
                digest: digest(&steps),
                steps,
                hidden,
            }),
        })
    }
}

impl Steering {
    /// Whether it changes nothing: a scale of 0 takes no part.
    pub fn is_idle(&self) -> bool {
        self.inner.steps.iter().all(Vec::is_empty)
    }

    pub(crate) fn steps(&self) -> &StreamSteps {
        &self.inner.steps
    }

    /// Whether it was made for a model of this width and number of layers.
    pub(crate) fn fits(&self, engine: &Engine) -> bool {
        self.inner.hidden == engine.spec().hidden && self.inner.steps.len() == engine.spec().layers.len() + 1
    }

    /// The same for steerings that do the same.
    pub(crate) fn digest(&self) -> &Bytes32 {
        &self.inner.digest
    }
}

/// A steer beside the model that it is to fit.
struct Fitted<'a> {
    index: usize,
    steer: &'a Steer,
    hidden: usize,
}

impl Fitted<'_> {
    /// Layers that are steered, rising.
    fn layers(&self, count: usize) -> Result<Vec<usize>, SteeringError> {
        let (steer, last) = (self.index, count.saturating_sub(1));
        let range = self.steer.layers.clone().unwrap_or(0..=last);
        let inside = |layer: usize| match layer < count {
            true => Ok(()),
            false => Err(SteeringError::LayerOutside { steer, layer, last }),
        };
        inside(*range.end())?;
        let layers: Vec<usize> = match self.vector() {
            None => range.clone().collect(),
            Some(vector) => {
                let found = vector.width();
                if found != self.hidden {
                    let expected = self.hidden;
                    return Err(SteeringError::Width { steer, found, expected });
                }
                vector.layers().try_for_each(inside)?;
                vector.layers().filter(|layer| range.contains(layer)).collect()
            }
        };
        if layers.is_empty() {
            let (first, last) = range.into_inner();
            return Err(SteeringError::NoDirection { steer, first, last });
        }
        Ok(layers)
    }

    fn vector(&self) -> Option<&ControlVector> {
        match &self.steer.operation {
            Operation::Add { vector, .. } | Operation::Ablate { vector, .. } | Operation::Clamp { vector, .. } => {
                Some(vector)
            }
            Operation::Renorm => None,
        }
    }

    /// What is done at a layer that [`Fitted::layers`] named. `None`: nothing, and so no bit changes.
    fn step(&self, layer: usize) -> Result<Option<StreamStep>, SteeringError> {
        Ok(match &self.steer.operation {
            Operation::Add { vector, scale } => {
                let vector = vector.directions[&layer].clone();
                self.scale(*scale)?.map(|scale| StreamStep::Add { vector, scale })
            }
            Operation::Ablate { vector, scale } => {
                let unit = self.unit(vector, layer)?;
                self.scale(*scale)?.map(|scale| StreamStep::Ablate { unit, scale })
            }
            Operation::Clamp { vector, min, max } => {
                let unit = self.unit(vector, layer)?;
                let (min, max) = (*min, *max);
                if min.is_nan() || max.is_nan() || min > max {
                    return Err(self.number("the lower bound is above the upper one, or one is not a number"));
                }
                if min == f32::INFINITY || max == f32::NEG_INFINITY {
                    return Err(self.number("no finite number is between the bounds"));
                }
                Some(StreamStep::Clamp { unit, min, max })
            }
            Operation::Renorm => Some(StreamStep::Renorm),
        })
    }

    fn scale(&self, scale: f32) -> Result<Option<f32>, SteeringError> {
        match scale.is_finite() {
            true => Ok(Some(scale).filter(|scale| *scale != 0.0)),
            false => Err(self.number("the scale is not finite")),
        }
    }

    fn number(&self, what: &'static str) -> SteeringError {
        SteeringError::Number {
            steer: self.index,
            what,
        }
    }

    /// The direction at length 1, computed in f64.
    fn unit(&self, vector: &ControlVector, layer: usize) -> Result<Arc<[f32]>, SteeringError> {
        let direction = &vector.directions[&layer];
        let squares: f64 = direction.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let steer = self.index;
        if squares == 0.0 {
            return Err(SteeringError::ZeroDirection { steer, layer });
        }
        let length = squares.sqrt();
        Ok(direction.iter().map(|x| (f64::from(*x) / length) as f32).collect())
    }
}

/// The digest of everything that steps do. A steering that does nothing has the digest of none.
fn digest(steps: &StreamSteps) -> Bytes32 {
    if steps.iter().all(Vec::is_empty) {
        return Bytes32::default();
    }
    let mut digester = Digester::default();
    for steps in steps {
        // Text that shows every field, and f32 by the shortest digits that read back to it; a digester never refuses it.
        let _ = writeln!(digester, "{steps:?}");
    }
    digester.finish()
}
