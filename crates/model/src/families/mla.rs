//! What can differ between latent attentions.

use super::names::Name;

/// Latent attention (MLA), in layers that have a projection to the latent.
#[derive(Clone, Copy, Debug)]
pub struct MlaFacts {
    /// Hidden → latent and rotated key.
    pub latent: Name,
}
