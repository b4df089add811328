//! Steps of products whose matrices are read when they are wanted: cut by columns, so that no part wants much memory at once.

use goldcrest_kernels::PANEL_ROWS;
use goldcrest_model::plan::Plan;

use super::{Group, Products};
use crate::weights::Panels;

impl Products {
    /// The step in parts, each with at most `most_bytes` of matrices, or with one panel of each matrix of a group. Columns do not depend on
    /// each other, so that the parts do what the whole does.
    pub fn cut(self, plan: &Plan, most_bytes: usize) -> Vec<Products> {
        let mut parts: Vec<Vec<Group>> = vec![Vec::new()];
        let mut room = most_bytes;
        for group in &self.groups {
            let matrices = group.ops.iter().filter_map(|op| op.matrix());
            let panel_bytes: usize = matrices.map(|id| Panels::of(plan.matrix(id)).panel_bytes).sum();
            let mut start = group.columns.start;
            while start < group.columns.end {
                let mut panels = room / panel_bytes.max(1);
                if panels == 0 && parts.last().is_some_and(|part| !part.is_empty()) {
                    parts.push(Vec::new());
                    room = most_bytes;
                    continue;
                }
                panels = panels.clamp(1, (group.columns.end - start).div_ceil(PANEL_ROWS));
                let end = group.columns.end.min(start + panels * PANEL_ROWS);
                parts.last_mut().expect("there is a first").push(Group {
                    columns: start..end,
                    ..group.clone()
                });
                room = room.saturating_sub(panels * panel_bytes);
                start = end;
            }
        }
        let (last, after_norm) = (parts.len() - 1, self.ops.start + usize::from(self.norm.is_some()));
        let part = |(index, groups): (usize, Vec<Group>)| {
            let start = if index == 0 { self.ops.start } else { after_norm };
            let end = if index == last { self.ops.end } else { after_norm };
            let mut part = Products {
                ops: start..end,
                norm: self.norm.filter(|_| index == 0),
                groups,
                homes: Vec::new(),
                ..self
            };
            part.complete();
            part
        };
        parts.into_iter().enumerate().map(part).collect()
    }
}
