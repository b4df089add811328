"""Forward pass of the `llama`, `qwen2` and `gemma3` GGUF architectures in numpy, without a key-value cache.

Written for reading, not for speed: whole sequences, one layer's weights in memory at a time. Every computation runs in the type
given to `Forward` (float32 or float64), on weights dequantised to float32 by the `gguf` package.
"""

from dataclasses import dataclass
from typing import Optional

import numpy as np

HEAD_ROWS = 16384


@dataclass
class Shape:
    """Hyper-parameters of one file."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_base: float
    rope_base_local: float
    rope_factor: float
    window: Optional[int]
    score_scale: float
    interleaved_rope: bool
    gemma: bool

    @staticmethod
    def of(file, query_pre_attn_scalar=None):
        """Reads the metadata. `query_pre_attn_scalar` is a Gemma 3 setting that GGUF files do not carry (default: head_dim)."""
        get = file.hyperparameter
        gemma = file.architecture == "gemma3"
        if file.architecture not in ("llama", "qwen2", "gemma3"):
            raise SystemExit(f"no reference for architecture {file.architecture}")
        scaling = get("rope.scaling.type", "none")
        if scaling not in ("none", "linear"):
            raise SystemExit(f"no reference for rope scaling {scaling}")
        hidden, heads = get("embedding_length"), get("attention.head_count")
        head_dim = get("attention.key_length", hidden // heads)
        return Shape(
            layers=get("block_count"),
            hidden=hidden,
            heads=heads,
            kv_heads=get("attention.head_count_kv", heads),
            head_dim=head_dim,
            eps=get("attention.layer_norm_rms_epsilon"),
            rope_base=get("rope.freq_base", 10000.0),
            rope_base_local=get("rope.freq_base_swa", 10000.0),
            rope_factor=get("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0,
            window=get("attention.sliding_window") if gemma else None,
            score_scale=(query_pre_attn_scalar or head_dim) ** -0.5,
            interleaved_rope=file.architecture == "llama",
            gemma=gemma,
        )

    def is_local(self, layer):
        """Gemma 3: five windowed layers, then one that sees everything."""
        return self.gemma and (layer + 1) % 6 != 0


class Forward:
    """A model whose weights are dequantised on use; `keep` holds on to them for repeated calls."""

    def __init__(self, file, dtype, keep=False, query_pre_attn_scalar=None):
        self.file = file
        self.dtype = dtype
        self.shape = Shape.of(file, query_pre_attn_scalar)
        self._kept = {} if keep else None

    def weight(self, name):
        if self._kept is not None and name in self._kept:
            return self._kept[name]
        value = self.file.rows(name).astype(self.dtype)
        if self._kept is not None:
            self._kept[name] = value
        return value

    def logits(self, ids, last_only=False):
        """Logits [positions, vocabulary] of the token ids, which start at position 0."""
        shape = self.shape
        x = self.file.rows("token_embd.weight", np.asarray(ids)).astype(self.dtype)
        if shape.gemma:
            x = x * self.dtype(np.sqrt(shape.hidden))
        for layer in range(shape.layers):
            x = self._layer(layer, x)
        if last_only:
            x = x[-1:]
        return self._head(self._norm(x, "output_norm.weight"))

    def _layer(self, layer, x):
        prefix = f"blk.{layer}."
        attention = self._attention(layer, self._norm(x, prefix + "attn_norm.weight"))
        if self.shape.gemma:
            attention = self._norm(attention, prefix + "post_attention_norm.weight")
        x = x + attention
        ffn = self._ffn(prefix, self._norm(x, prefix + "ffn_norm.weight"))
        if self.shape.gemma:
            ffn = self._norm(ffn, prefix + "post_ffw_norm.weight")
        return x + ffn

    def _norm(self, x, name):
        # The converter has already added Gemma's one to the weight.
        mean_square = np.mean(x * x, axis=-1, keepdims=True, dtype=self.dtype)
        return x / np.sqrt(mean_square + self.dtype(self.shape.eps)) * self.weight(name)

    def _linear(self, x, name):
        y = x @ self.weight(name + ".weight").T
        return y + self.weight(name + ".bias") if name + ".bias" in self.file else y

    def _attention(self, layer, x):
        shape, prefix, count = self.shape, f"blk.{layer}.", len(x)
        q = self._linear(x, prefix + "attn_q").reshape(count, shape.heads, shape.head_dim)
        k = self._linear(x, prefix + "attn_k").reshape(count, shape.kv_heads, shape.head_dim)
        v = self._linear(x, prefix + "attn_v").reshape(count, shape.kv_heads, shape.head_dim)
        if prefix + "attn_q_norm.weight" in self.file:
            q = self._norm(q, prefix + "attn_q_norm.weight")
            k = self._norm(k, prefix + "attn_k_norm.weight")
        cos, sin = self._angles(layer, count)
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)

        distance = np.arange(count)[:, None] - np.arange(count)[None, :]
        visible = distance >= 0
        if shape.is_local(layer):
            visible &= distance < shape.window
        out = np.empty_like(q)
        for head in range(shape.heads):
            kv_head = head // (shape.heads // shape.kv_heads)
            scores = q[:, head] @ k[:, kv_head].T * self.dtype(shape.score_scale)
            scores = np.where(visible, scores, -np.inf)
            p = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = (p / p.sum(axis=-1, keepdims=True)) @ v[:, kv_head]
        return self._linear(out.reshape(count, -1), prefix + "attn_output")

    def _angles(self, layer, count):
        """cos and sin, [positions, 1, head_dim / 2]."""
        shape, local = self.shape, self.shape.is_local(layer)
        base = self.dtype(shape.rope_base_local if local else shape.rope_base)
        exponent = np.arange(0, shape.head_dim, 2).astype(self.dtype) / self.dtype(shape.head_dim)
        frequency = 1 / base**exponent
        if not local:
            frequency = frequency / self.dtype(shape.rope_factor)
        if "rope_freqs.weight" in self.file:
            frequency = frequency / self.weight("rope_freqs.weight")
        angle = np.arange(count).astype(self.dtype)[:, None, None] * frequency
        return np.cos(angle), np.sin(angle)

    def _rotate(self, x, cos, sin):
        half = self.shape.head_dim // 2
        if self.shape.interleaved_rope:
            # The converter of `llama` files permutes the rows of q and k so that rotated pairs lie next to each other.
            a, b = x[..., 0::2], x[..., 1::2]
            return np.stack((a * cos - b * sin, b * cos + a * sin), axis=-1).reshape(x.shape)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)

    def _ffn(self, prefix, x):
        gate, up = self._linear(x, prefix + "ffn_gate"), self._linear(x, prefix + "ffn_up")
        if self.shape.gemma:
            inner = self.dtype(np.sqrt(2 / np.pi)) * (gate + self.dtype(0.044715) * gate**3)
            gate = self.dtype(0.5) * gate * (1 + np.tanh(inner))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self._linear(gate * up, prefix + "ffn_down")

    def _head(self, x):
        """In slices of the vocabulary: a whole head in float64 would not fit beside its logits."""
        name = "output.weight" if "output.weight" in self.file else "token_embd.weight"
        vocabulary = self.file.row_count(name)
        logits = np.empty((len(x), vocabulary), dtype=self.dtype)
        for start in range(0, vocabulary, HEAD_ROWS):
            rows = slice(start, start + HEAD_ROWS)
            weight = self.weight(name)[rows] if self._kept is not None else self.file.rows(name, rows).astype(self.dtype)
            logits[:, rows] = x @ weight.T
        return logits
