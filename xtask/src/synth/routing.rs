//! How a router spreads tokens over its experts.
//!
//! Random routers choose almost uniformly, which real ones do not. A skewed file has a constant direction: the first [`STRETCH`] elements
//! of every embedding row are the same. The row of an expert in a router is, there, a multiple of that direction, so each expert's score
//! has a constant part beside its random one, and any engine meets the same skew.
//!
//! The expert of rank r gets the constant part −S · ln r, in units in which a Gumbel-distributed random part would make the best expert
//! Zipf-distributed with exponent S. Ranks are dealt anew in each layer.

use goldcrest_format::DType;
use goldcrest_format::blocks::decode;

use super::blocks;
use super::error::SynthError;
use super::random::Random;
use super::shape::Shape;

/// Elements of the constant direction: whole blocks of every type.
const STRETCH: usize = 256;
/// The constant part of an embedding row's square.
const CONSTANT_SHARE: f64 = 1.0 / 3.0;
/// Places of random streams that belong to no tensor.
const DIRECTION: u64 = u64::MAX;
const RANKS: u64 = u64::MAX - 1;
const STEEPEST: f64 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Routing {
    Uniform,
    Zipf { exponent: f64 },
}

impl Routing {
    /// `uniform` or `zipf:S`.
    pub(crate) fn parse(text: &str) -> Result<Routing, SynthError> {
        let exponent = text.strip_prefix("zipf:").and_then(|number| number.parse().ok());
        match exponent {
            _ if text == "uniform" => Ok(Routing::Uniform),
            Some(exponent) if (0.0..=STEEPEST).contains(&exponent) => Ok(Routing::Zipf { exponent }),
            _ => Err(SynthError::Routing { text: text.to_owned() }),
        }
    }
}

/// The constant direction of a file, and what its routers make of it.
#[derive(Debug)]
pub(crate) struct Skew {
    exponent: f64,
    seed: u64,
    hidden: usize,
    /// The beginning of every embedding row, as the embedding's type stores it.
    start_of_rows: Vec<u8>,
    /// That direction, of length 1.
    direction: Vec<f32>,
}

impl Skew {
    /// `None` for uniform routing.
    pub(crate) fn new(
        shape: &Shape,
        routing: Routing,
        seed: u64,
        embedding: DType,
    ) -> Result<Option<Skew>, SynthError> {
        let Routing::Zipf { exponent } = routing else {
            return Ok(None);
        };
        let need = |need: &str| SynthError::Skew { need: need.to_owned() };
        if shape.experts.is_none() {
            return Err(need("experts: this model has none"));
        }
        if shape.tied {
            return Err(need(
                "a head of its own: an embedding that is the head is too small to stay visible in the stream",
            ));
        }
        if shape.hidden < 2 * STRETCH {
            return Err(need("a hidden_size of at least 512"));
        }
        // Elements outside the stretch have size 1.
        let rest = (shape.hidden - STRETCH) as f64;
        let std = libm::sqrt(rest * CONSTANT_SHARE / (1.0 - CONSTANT_SHARE) / STRETCH as f64);
        let mut start_of_rows = vec![0; STRETCH / embedding.block_elements() * embedding.block_bytes()];
        blocks::fill(
            embedding,
            std,
            &mut Random::of(seed, [DIRECTION, 0]),
            &mut start_of_rows,
        )?;
        let mut direction = vec![0.0; STRETCH];
        decode(embedding, &start_of_rows, &mut direction)?;
        let length = direction.iter().map(|x| x * x).sum::<f32>().sqrt();
        direction.iter_mut().for_each(|x| *x /= length);
        Ok(Some(Skew {
            exponent,
            seed,
            hidden: shape.hidden,
            start_of_rows,
            direction,
        }))
    }

    /// Writes the direction into rows of the embedding.
    pub(crate) fn mark_embedding(&self, rows: &mut [u8], row_bytes: usize) {
        for row in rows.chunks_exact_mut(row_bytes) {
            row[..self.start_of_rows.len()].copy_from_slice(&self.start_of_rows);
        }
    }

    /// Writes each expert's constant part into some rows of a layer's router, which are F32.
    pub(crate) fn mark_router(&self, layer: usize, experts: usize, (first, rows): (usize, &mut [u8])) {
        let components = self.components(layer, experts);
        let row_bytes = self.hidden * size_of::<f32>();
        for (row, component) in rows.chunks_exact_mut(row_bytes).zip(components.iter().skip(first)) {
            for (bytes, x) in row.as_chunks_mut().0.iter_mut().zip(&self.direction) {
                *bytes = (component * x).to_le_bytes();
            }
        }
    }

    /// The multiples of the direction in the rows of a layer's router.
    fn components(&self, layer: usize, experts: usize) -> Vec<f32> {
        /// Standard deviation of the Gumbel distribution: π/√6.
        const GUMBEL_STD: f64 = 1.282_549_830_161_864;
        // A normed stream has the length √hidden: the share of it that is constant meets the component, the rest makes a random score.
        let constant_length = libm::sqrt(CONSTANT_SHARE * self.hidden as f64);
        let random_std = libm::sqrt(1.0 - CONSTANT_SHARE);
        let unit = random_std / GUMBEL_STD / constant_length;
        let ranks = self.ranks(layer, experts);
        let score = |rank: usize| -self.exponent * libm::log(rank as f64);
        ranks.into_iter().map(|rank| (score(rank) * unit) as f32).collect()
    }

    /// 1 to `experts`, shuffled (Fisher and Yates).
    fn ranks(&self, layer: usize, experts: usize) -> Vec<usize> {
        let mut random = Random::of(self.seed, [RANKS, layer as u64]);
        let mut ranks: Vec<usize> = (1..=experts).collect();
        for last in (1..experts).rev() {
            ranks.swap(last, (random.next() % (last as u64 + 1)) as usize);
        }
        ranks
    }
}
