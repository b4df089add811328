//! `show`: what a model is.

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::Path;

use anyhow::bail;
use goldcrest::prompts::Prompts;
use goldcrest_engine::{Engine, KvElement, ModelSpec, Plan, kv_bytes_per_token};
use goldcrest_format::Checkpoint;
use goldcrest_model::read_spec;
use goldcrest_model::spec::{Block, Layer, Visible};
use goldcrest_text::Tokenizer;
use serde_json::{Value, json};

use crate::args::ShowArgs;
use crate::model::open_checkpoint;
use crate::output::{count, size};

pub fn run(args: &ShowArgs) -> anyhow::Result<()> {
    let (path, checkpoint) = open_checkpoint(&args.model)?;
    let mut out = stdout().lock();
    if args.template {
        let Some(template) = checkpoint.chat_template() else {
            bail!("{} has no chat template", path.display())
        };
        writeln!(out, "{template}")?;
        return Ok(());
    }
    let spec = read_spec(&checkpoint)?;
    let plan = Engine::plan_of(&spec, Engine::suited_activations(&spec));
    if args.plan {
        write!(out, "{plan}")?;
        return Ok(());
    }
    // A model without a usable vocabulary is still a model.
    let prompts = Prompts::without_template(&checkpoint);
    let facts = Facts::new(&path, &checkpoint, &spec, &plan);
    match (args.json, prompts) {
        (true, prompts) => writeln!(
            out,
            "{:#}",
            facts.as_json(prompts.ok().as_ref().map(Prompts::tokenizer))
        )?,
        (false, Ok(prompts)) => write!(out, "{}{}", facts.as_text(), tokenizer_text(prompts.tokenizer()))?,
        (false, Err(error)) => writeln!(out, "{}tokenizer   none that can be used: {error}", facts.as_text())?,
    }
    Ok(())
}

/// What is told, gathered.
struct Facts<'a> {
    path: &'a Path,
    spec: &'a ModelSpec,
    parameters: u64,
    tensors: usize,
    bytes: u64,
    /// Tensors and bytes by storage type.
    types: BTreeMap<String, (usize, u64)>,
    /// Layers that are alike in a row.
    layers: Vec<(usize, String)>,
    kv_bytes_per_token: usize,
    template_chars: Option<usize>,
}

impl<'a> Facts<'a> {
    fn new(path: &'a Path, checkpoint: &Checkpoint, spec: &'a ModelSpec, plan: &Plan) -> Facts<'a> {
        let mut types = BTreeMap::<String, (usize, u64)>::new();
        for tensor in checkpoint.tensors() {
            let (tensors, bytes) = types.entry(tensor.dtype.to_string()).or_default();
            *tensors += 1;
            *bytes += tensor.bytes;
        }
        let mut layers: Vec<(usize, String)> = Vec::new();
        for layer in spec.layers.iter().map(layer_text) {
            match layers.last_mut() {
                Some((alike, text)) if *text == layer => *alike += 1,
                _ => layers.push((1, layer)),
            }
        }
        let kv_bytes = plan.kvs.iter().map(|kv| kv_bytes_per_token(kv, KvElement::F16));
        Facts {
            path,
            spec,
            parameters: checkpoint.tensors().map(|tensor| tensor.elements() as u64).sum(),
            tensors: checkpoint.tensors().len(),
            bytes: checkpoint.bytes(),
            types,
            layers,
            kv_bytes_per_token: kv_bytes.sum(),
            template_chars: checkpoint.chat_template().map(|template| template.chars().count()),
        }
    }

    fn as_text(&self) -> String {
        let spec = self.spec;
        let types = self
            .types
            .iter()
            .map(|(dtype, (tensors, bytes))| format!("{dtype} × {tensors} ({})", size(*bytes)));
        let mut text = format!(
            "model       {}\nfamily      {}\nparameters  {} in {} tensors, {}\ntypes       {}\n",
            self.path.display(),
            spec.family,
            count(self.parameters),
            self.tensors,
            size(self.bytes),
            types.collect::<Vec<_>>().join(", ")
        );
        let head = if spec.head.tied {
            "tied to the embedding"
        } else {
            "of its own"
        };
        text.push_str(&format!(
            "context     {} tokens\nvocabulary  {}, head {head}\nhidden      {}\nlayers      {}\n",
            spec.context,
            spec.vocabulary,
            spec.hidden,
            spec.layers.len()
        ));
        for (alike, layer) in &self.layers {
            text.push_str(&format!("  {alike:>3} ×     {layer}\n"));
        }
        let template = match self.template_chars {
            Some(chars) => format!("{chars} characters"),
            None => "none".to_owned(),
        };
        text.push_str(&format!(
            "keys/values {} a token in f16\ntemplate    {template}\n",
            size(self.kv_bytes_per_token as u64)
        ));
        text
    }

    fn as_json(&self, tokenizer: Option<&Tokenizer>) -> Value {
        let spec = self.spec;
        let types: serde_json::Map<String, Value> = self
            .types
            .iter()
            .map(|(dtype, (tensors, bytes))| (dtype.clone(), json!({ "tensors": tensors, "bytes": bytes })))
            .collect();
        let layers: Vec<Value> = spec.layers.iter().map(layer_json).collect();
        let tokenizer = tokenizer.map(|tokenizer| {
            let special = tokenizer.special_ids();
            json!({
                "vocabulary": tokenizer.vocabulary_len(),
                "bos": special.bos, "eos": special.eos, "unknown": special.unknown, "padding": special.padding,
                "ends": tokenizer.end_ids(),
            })
        });
        json!({
            "path": self.path.display().to_string(),
            "family": spec.family,
            "parameters": self.parameters,
            "tensors": self.tensors,
            "bytes": self.bytes,
            "types": types,
            "context": spec.context,
            "vocabulary": spec.vocabulary,
            "hidden": spec.hidden,
            "tied": spec.head.tied,
            "layers": layers,
            "kv_f16_bytes_per_token": self.kv_bytes_per_token,
            "tokenizer": tokenizer,
            "chat_template": self.template_chars.is_some(),
        })
    }
}

fn blocks(layer: &Layer) -> impl Iterator<Item = &Block> {
    let branches = layer.sublayers.iter().flat_map(|sublayer| &sublayer.branches);
    branches.map(|branch| &branch.block)
}

fn layer_text(layer: &Layer) -> String {
    blocks(layer).map(block_text).collect::<Vec<_>>().join("; ")
}

fn block_text(block: &Block) -> String {
    match block {
        Block::Attention(attention) => format!(
            "attention {} heads of {}, {} for keys and values, {}, {}",
            attention.heads,
            attention.key_dim,
            attention.kv_heads,
            seen(attention.rule.visible),
            attention
                .rope
                .as_ref()
                .map_or("no rope".to_owned(), |rope| format!("rope {rope}"))
        ),
        Block::Mla(mla) => format!(
            "latent attention {} heads of {} + {}, latent {}, {}",
            mla.heads,
            mla.nope_dim,
            mla.rope_dim,
            mla.latent_dim,
            seen(mla.rule.visible)
        ),
        Block::DeltaNet(net) => format!(
            "delta net {} heads of {} × {}, {} for keys",
            net.value_heads, net.key_dim, net.value_dim, net.key_heads
        ),
        Block::Mamba(mamba) => format!("mamba {} channels, state {}", mamba.channels, mamba.state_dim),
        Block::Mamba2(mamba) => format!(
            "mamba-2 {} heads of {}, state {}",
            mamba.heads, mamba.head_dim, mamba.state_dim
        ),
        Block::Lightning(lightning) => format!(
            "lightning attention {} heads of {}",
            lightning.heads, lightning.head_dim
        ),
        Block::ShortConv(conv) => format!("convolution of {} rows", conv.conv.kernel),
        Block::PerLayerInput(block) => format!("layer embedding {}", block.gate.weight.outputs()),
        Block::Dense(ffn) => format!("ffn {} {:?}", ffn.up.weight.outputs(), ffn.activation),
        Block::Moe(moe) => format!(
            "{} of {} experts of {} {}{}",
            moe.router.rule.top_k,
            moe.experts.up.len(),
            moe.experts.up.first().map_or(0, |up| up.weight.outputs()),
            moe.experts.gating,
            if moe.shared.is_some() { " and a shared one" } else { "" }
        ),
    }
}

fn seen(visible: Visible) -> String {
    match visible {
        Visible::All => "all positions".to_owned(),
        Visible::Window(positions) => format!("window {positions}"),
        Visible::Chunk(positions) => format!("chunks of {positions}"),
    }
}

fn layer_json(layer: &Layer) -> Value {
    blocks(layer).map(block_json).collect()
}

fn block_json(block: &Block) -> Value {
    match block {
        Block::Attention(attention) => json!({
            "kind": "attention",
            "heads": attention.heads,
            "kv_heads": attention.kv_heads,
            "key_dim": attention.key_dim,
            "value_dim": attention.value_dim,
            "window": attention.rule.visible.window(),
            "rope": attention.rope.as_ref().map(ToString::to_string),
            "query_norm": attention.query_norm.is_some(),
            "bias": attention.query.bias.is_some(),
        }),
        Block::Dense(ffn) => json!({
            "kind": "ffn",
            "width": ffn.up.weight.outputs(),
            "activation": format!("{:?}", ffn.activation),
        }),
        Block::Moe(moe) => json!({
            "kind": "experts",
            "experts": moe.experts.up.len(),
            "top_k": moe.router.rule.top_k,
            "width": moe.experts.up.first().map_or(0, |up| up.weight.outputs()),
            "activation": moe.experts.gating.to_string(),
            "shared": moe.shared.is_some(),
        }),
        other => json!({ "kind": block_text(other) }),
    }
}

fn tokenizer_text(tokenizer: &Tokenizer) -> String {
    let named = |id: u32| format!("{id} {:?}", tokenizer.token_text(id).unwrap_or_default());
    let special = tokenizer.special_ids();
    let begin = special.bos.map_or("none".to_owned(), named);
    let ends: Vec<String> = tokenizer.end_ids().iter().map(|&id| named(id)).collect();
    format!(
        "tokenizer   {} tokens\n  begins    {begin}\n  ends      {}\n",
        tokenizer.vocabulary_len(),
        ends.join(", ")
    )
}
