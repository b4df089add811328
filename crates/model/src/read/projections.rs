//! Where the rows of queries, keys and values lie.

use super::SpecError;
use super::attention::Heads;
use super::layers::LayerReader;
use super::tensors::{Place, Tensors};
use crate::families::{Name, OutputGate, Qkv};
use crate::spec::RowSelection;

impl LayerReader<'_> {
    /// The places of query, key and value: a tensor each, or rows of one.
    pub fn projection_places(&self, tensors: &Tensors, layer: usize, heads: Heads) -> [Place; 3] {
        let facts = &self.family.attention;
        let names = &self.family.names;
        let Heads {
            kv_heads,
            key_dim,
            value_dim,
            ..
        } = heads;
        let query_rows = self.query_rows(heads);
        let [query, key, value] = [heads.heads * key_dim, kv_heads * key_dim, kv_heads * value_dim];
        let total = query + key + value;
        let fused = match self.settings.is_gguf() {
            true => Qkv::Stacked,
            false => facts.qkv,
        };
        let fused = tensors.has(names.qkv, layer, "weight").then_some(fused);
        let place = |name: Name, rows: usize, selection: RowSelection| Place {
            rows: selection,
            ..self.place(name, layer, [rows, self.hidden])
        };
        let fused_place = |selection| place(names.qkv, total, selection);
        match fused {
            None => [
                place(names.query, query_rows.0, query_rows.1),
                place(names.key, key, RowSelection::all(key)),
                place(names.value, value, RowSelection::all(value)),
            ],
            Some(Qkv::Stacked) => [
                fused_place(RowSelection::stretch(0, query)),
                fused_place(RowSelection::stretch(query, key)),
                fused_place(RowSelection::stretch(query + key, value)),
            ],
            Some(Qkv::Grouped) => {
                let group = heads.heads / kv_heads * key_dim;
                let stride = group + key_dim + value_dim;
                let part = |first, rows| fused_place(RowSelection::grouped(kv_heads, stride, first, rows));
                [part(0, group), part(group, key_dim), part(group + key_dim, value_dim)]
            }
        }
    }

    /// Rows of the query's own matrix, and those of them that are the query: the matrix may hold a gate after each head.
    fn query_rows(&self, heads: Heads) -> (usize, RowSelection) {
        let Heads { heads, key_dim, .. } = heads;
        match self.family.attention.output_gate {
            OutputGate::InQuery => (
                heads * 2 * key_dim,
                RowSelection::grouped(heads, 2 * key_dim, 0, key_dim),
            ),
            _ => (heads * key_dim, RowSelection::all(heads * key_dim)),
        }
    }

    /// The layer whose keys and values layer `layer` sees in place of its own: the last one of its kind before all that share.
    pub fn layer_shared_from(&self, layer: usize) -> Result<Option<usize>, SpecError> {
        let Some(key) = self.family.attention.shared_kv else {
            return Ok(None);
        };
        let sharing = self.settings.opt_usize(key)?.unwrap_or(0);
        let first = self.layers.saturating_sub(sharing);
        if layer < first {
            return Ok(None);
        }
        let kind = self.visible(layer);
        match (0..first).rev().find(|&earlier| self.visible(earlier) == kind) {
            Some(earlier) => Ok(Some(earlier)),
            None => {
                let expected = "fewer layers: one of each kind has to come before them";
                Err(self.settings.bad_value(key, sharing, expected))
            }
        }
    }
}
