//! The layers of a decoder, each with its choices resolved.

use super::SpecError;
use super::attention::Visibility;
use super::keys::Settings;
use super::tensors::Tensors;
use super::windows::LayerKinds;
use crate::families::{Family, Layout, Name, Number, Parallel, RopeLayers};
use crate::spec::{Block, Branch, Layer, Norm, Residual, Sublayer, Visible};

pub struct LayerReader<'a> {
    pub settings: &'a Settings<'a>,
    pub family: &'static Family,
    pub hidden: usize,
    pub layers: usize,
    pub eps: f64,
    kinds: LayerKinds,
}

impl<'a> LayerReader<'a> {
    pub fn new(settings: &'a Settings<'a>, family: &'static Family, hidden: usize) -> Result<Self, SpecError> {
        let layers = settings.layers()?;
        if layers > MOST_LAYERS {
            return Err(settings.bad_value(super::keys::LAYERS, layers, format!("at most {MOST_LAYERS}")));
        }
        Ok(LayerReader {
            settings,
            family,
            hidden,
            layers,
            eps: settings.norm_eps(family.norm.eps)?,
            kinds: LayerKinds::read(settings, family, layers)?,
        })
    }

    /// Every layer. The first missing tensor ends it, so a false layer count costs nothing.
    pub fn read(&self, tensors: &mut Tensors) -> Result<Vec<Layer>, SpecError> {
        (0..self.layers).map(|layer| self.layer(tensors, layer)).collect()
    }

    fn layer(&self, tensors: &mut Tensors, layer: usize) -> Result<Layer, SpecError> {
        let names = &self.family.names;
        let facts = &self.family.blocks;
        if facts.layout == Layout::Halves {
            return self.layer_of_halves(tensors, layer);
        }
        let parallel = match facts.parallel {
            Parallel::Never => false,
            Parallel::Always => true,
            Parallel::Key(key, default) => self.settings.opt_bool(key)?.unwrap_or(default),
        };
        let has = |name| tensors.has(name, layer, "weight");
        let (mixer_norm, ffn_norm) = match (has(names.attention_norm), has(names.ffn_norm)) {
            (true, false) if parallel => (names.attention_norm, names.attention_norm),
            (false, true) if parallel => (names.ffn_norm, names.ffn_norm),
            _ if facts.layout == Layout::One => (names.attention_norm, names.attention_norm),
            _ => (names.attention_norm, names.ffn_norm),
        };
        let mut mixers = self.mixer_branches(tensors, mixer_norm, layer)?;
        let has_ffn = facts.layout != Layout::One || mixers.is_empty();
        let mut sublayers = Vec::new();
        if parallel {
            mixers.push(self.ffn_branch(tensors, ffn_norm, layer)?);
            sublayers.push(self.sublayer(mixers, None)?);
        } else {
            if !mixers.is_empty() {
                let post = self.post_norm(tensors, names.attention_post_norm, layer)?;
                sublayers.push(self.sublayer(mixers, post)?);
            }
            if let Some(both) = self.beside(tensors, layer)? {
                sublayers.push(both);
            } else if has_ffn {
                let ffn = self.ffn_branch(tensors, ffn_norm, layer)?;
                let post = self.post_norm(tensors, names.ffn_post_norm, layer)?;
                sublayers.push(self.sublayer(vec![ffn], post)?);
            }
        }
        sublayers.extend(self.per_layer_input(tensors, layer)?);
        let scale = match tensors.has(names.layer_scale, layer, "") {
            true => tensors.scalar(names.layer_scale, layer, "")?,
            false => 1.0,
        };
        Ok(Layer { sublayers, scale })
    }

    /// See [`Layout::Halves`].
    fn layer_of_halves(&self, tensors: &mut Tensors, layer: usize) -> Result<Layer, SpecError> {
        let names = &self.family.names;
        let mut sublayers = Vec::new();
        for half in 0..2 {
            tensors.half = half;
            let mixers = self.mixer_branches(tensors, names.attention_norm, layer)?;
            sublayers.push(self.sublayer(mixers, None)?);
            let dense = Block::Dense(Box::new(self.dense_ffn(tensors, layer)?));
            let mut branches = vec![self.branch(tensors, names.ffn_norm, layer, dense)?];
            if half == 0
                && let Some(moe) = self.moe(tensors, layer)?
            {
                let moe = self.branch(tensors, names.ffn_norm, layer, Block::Moe(Box::new(moe)))?;
                branches.push(Branch { deferred: true, ..moe });
            }
            sublayers.push(self.sublayer(branches, None)?);
        }
        Ok(Layer { sublayers, scale: 1.0 })
    }

    fn sublayer(&self, branches: Vec<Branch>, post: Option<Norm>) -> Result<Sublayer, SpecError> {
        let facts = &self.family.blocks;
        let (residual, scale) = match (&facts.normed_residual, branches.first()) {
            (Some(factors), Some(first)) => {
                let [input, output] = match first.block {
                    Block::Dense(_) | Block::Moe(_) => factors.ffn,
                    Block::Attention(_) | Block::Mla(_) => factors.attention,
                    _ => factors.recurrent,
                };
                let scale = self.number(input)?;
                (Residual::NormedInput { scale }, self.number(output)?)
            }
            _ => (Residual::Stream, self.number(facts.residual_scale)?),
        };
        Ok(Sublayer {
            branches,
            post,
            scale,
            residual,
        })
    }

    /// Whether a layer norms the inputs and the outputs of its blocks.
    fn normed(&self, tensors: &Tensors, layer: usize) -> [bool; 2] {
        let facts = &self.family.blocks;
        match facts.pre_or_post {
            true => {
                let pre = tensors.has(self.family.names.attention_norm, layer, "weight");
                [pre, !pre]
            }
            false => [facts.pre, facts.post],
        }
    }

    fn post_norm(&self, tensors: &mut Tensors, name: Name, layer: usize) -> Result<Option<Norm>, SpecError> {
        let [_, post] = self.normed(tensors, layer);
        match post {
            true => tensors.norm(name, layer, self.hidden).map(Some),
            false => Ok(None),
        }
    }

    fn ffn_branch(&self, tensors: &mut Tensors, norm: Name, layer: usize) -> Result<Branch, SpecError> {
        let block = self.ffn_block(tensors, layer)?;
        self.branch(tensors, norm, layer, block)
    }

    /// The mixers of a layer, each with its norm.
    fn mixer_branches(&self, tensors: &mut Tensors, norm: Name, layer: usize) -> Result<Vec<Branch>, SpecError> {
        let blocks = self.mixers(tensors, layer)?;
        blocks
            .into_iter()
            .map(|block| self.branch(tensors, norm, layer, block))
            .collect()
    }

    /// The mixers of a layer: one in most models, several side by side in some, none in layers that are one feed-forward block.
    fn mixers(&self, tensors: &mut Tensors, layer: usize) -> Result<Vec<Block>, SpecError> {
        let mut blocks = Vec::new();
        if let Some(mla) = self.mla(tensors, layer)? {
            blocks.push(Block::Mla(Box::new(mla)));
        }
        if let Some(recurrent) = self.recurrent(tensors, layer)? {
            blocks.push(recurrent);
        }
        let names = &self.family.names;
        let named = [names.query, names.qkv]
            .iter()
            .any(|name| tensors.has(*name, layer, "weight"));
        let attends = match self.family.blocks.layout {
            // A layer without any mixer lacks attention: reading it says which tensor.
            Layout::MixerAndFfn | Layout::Halves => blocks.is_empty(),
            Layout::MixersAndFfn => true,
            Layout::One => blocks.is_empty() && named,
        };
        if attends {
            blocks.push(Block::Attention(Box::new(self.attention(tensors, layer)?)));
        }
        Ok(blocks)
    }

    fn ffn_block(&self, tensors: &mut Tensors, layer: usize) -> Result<Block, SpecError> {
        match self.moe(tensors, layer)? {
            Some(moe) => Ok(Block::Moe(Box::new(moe))),
            None => Ok(Block::Dense(Box::new(self.dense_ffn(tensors, layer)?))),
        }
    }

    fn branch(&self, tensors: &mut Tensors, norm: Name, layer: usize, block: Block) -> Result<Branch, SpecError> {
        let facts = &self.family.blocks;
        let [scale_in, scale_out] = match &block {
            Block::Attention(_) | Block::Mla(_) => facts.attention_scales,
            Block::Dense(_) | Block::Moe(_) => [Number::One, facts.ffn_scale],
            _ => facts.recurrent_scales,
        };
        let [pre, _] = self.normed(tensors, layer);
        let pre = match pre {
            true => Some(tensors.norm(norm, layer, self.hidden)?),
            false => None,
        };
        Ok(Branch {
            pre,
            scales: [self.number(scale_in)?, self.number(scale_out)?],
            ..Branch::plain(block)
        })
    }

    pub fn visible(&self, layer: usize) -> Visible {
        self.kinds.visible[layer]
    }

    pub fn visibility(&self, tensors: &Tensors, layer: usize) -> Result<Visibility, SpecError> {
        let dense_rotates = match self.family.attention.rope.layers {
            RopeLayers::WindowedOrDense(period) => {
                self.settings.opt_usize(period)?.is_none_or(|period| period == 1)
                    && !tensors.has(self.family.moe.names.router, layer, "weight")
            }
            _ => false,
        };
        Ok(Visibility {
            visible: self.kinds.visible[layer],
            rotates: self.kinds.rotates[layer] || dense_rotates,
        })
    }

    pub fn number(&self, number: Number) -> Result<f32, SpecError> {
        read_number(self.settings, number, self.hidden, self.layers)
    }

    /// A tensor whose rows are neither of the numbers that would do.
    pub fn bad_rows(&self, tensors: &Tensors, name: Name, layer: usize, rows: usize, expected: usize) -> SpecError {
        SpecError::BadShape {
            tensor: tensors.spelled(name, layer).unwrap_or_default(),
            found: vec![rows, self.hidden],
            expected: vec![expected, self.hidden],
        }
    }
}

/// More layers than any model has; a false count is refused before lists of that length are made.
const MOST_LAYERS: usize = 4096;

pub fn read_number(settings: &Settings, number: Number, hidden: usize, layers: usize) -> Result<f32, SpecError> {
    let of_or = |key, default| settings.opt_f64(key).map(|value| value.unwrap_or(default));
    let of = |key| of_or(key, 1.0);
    Ok(match number {
        Number::One => 1.0,
        Number::Key(key) => of(key)?,
        Number::Inverse(key) => 1.0 / of(key)?,
        Number::SqrtHidden => (hidden as f64).sqrt(),
        Number::SqrtHiddenIf(key) => match settings.opt_bool(key)?.unwrap_or(settings.is_gguf()) {
            true => (hidden as f64).sqrt(),
            false => 1.0,
        },
        Number::KeyOr(key, default) => of_or(key, default)?,
        Number::OverSqrtLayers(key, default) => of_or(key, default)? / (layers as f64).sqrt(),
        Number::OverHidden(key, default) => of_or(key, default)? / hidden as f64,
        Number::Entry(key, index) => settings.opt_entry(key, index)?.unwrap_or(1.0),
    } as f32)
}
