//! Layers whose dense block and mixture of experts stand side by side.

use super::SpecError;
use super::layers::LayerReader;
use super::tensors::Tensors;
use crate::spec::{Block, Branch, Norm, NormKind, Sublayer, VectorMap};

impl LayerReader<'_> {
    /// Both blocks as one sublayer, if the family has them side by side and the layer has a router.
    pub fn beside(&self, tensors: &mut Tensors, layer: usize) -> Result<Option<Sublayer>, SpecError> {
        let Some(facts) = self.family.beside else {
            return Ok(None);
        };
        let Some(mut moe) = self.moe(tensors, layer)? else {
            return Ok(None);
        };
        let mut scale = tensors.vector(facts.router_scale, layer, "", self.hidden)?;
        scale.map = VectorMap::Times((1.0 / (self.hidden as f64).sqrt()) as f32);
        moe.router.norm = Some(Norm {
            kind: NormKind::Rms,
            weight: Some(scale),
            bias: None,
            eps: self.eps as f32,
        });
        moe.router.expert_scale = Some(tensors.vector(facts.expert_scale, layer, "", moe.router.rule.experts)?);
        let dense = self.dense_ffn(tensors, layer)?;
        let mut norm = |name| tensors.norm(name, layer, self.hidden);
        let branches = vec![
            Branch {
                pre: Some(norm(self.family.names.ffn_norm)?),
                post: Some(norm(facts.dense_post_norm)?),
                ..Branch::plain(Block::Dense(Box::new(dense)))
            },
            Branch {
                pre: Some(norm(facts.moe_norm)?),
                post: Some(norm(facts.moe_post_norm)?),
                ..Branch::plain(Block::Moe(Box::new(moe)))
            },
        ];
        let post = norm(self.family.names.ffn_post_norm)?;
        Ok(Some(Sublayer::plain(branches, Some(post))))
    }
}
