"""A hybrid's BlockModel computed token after token in numpy: what its matrices and vectors mean, without any kernel."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures import mixers, model_config
from hierchat.models.formats.block_model import BlockModel

Floats = NDArray[np.float64]


def logits_of(model: BlockModel, tokens: Sequence[int]) -> Floats:
    """[tokens, vocabulary]"""
    config, vectors = model.config, model.vectors
    x = model.embedding.floats(np.array(tokens)).astype(np.float64)
    x *= config.get("embedding_multiplier") or 1.0
    scale = config.get("residual_multiplier") or 1.0
    for layer, matrices in enumerate(model.layers):
        part = _Layer(model, layer)
        if "o" in matrices:
            x = x + scale * part.after("after_attention_norms", part.mixed(part.norm("attention_norms", x)))
        if "down" in matrices:
            x = x + scale * part.after("after_inner_norms", part.mlp(part.norm("inner_norms", x)))
    x = _rms(x, vectors["last_norm"], config["rms_norm_eps"])
    return x @ model.head.floats().T.astype(np.float64) / (config.get("logits_scaling") or 1.0)


def _rms(x: Floats, weights: NDArray[np.float32], epsilon: float) -> Floats:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * weights


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def _silu(x: Floats) -> Floats:
    return x * _sigmoid(x)


class _Layer:
    def __init__(self, model: BlockModel, layer: int) -> None:
        self.config, self.number, self.matrices = model.config, layer, model.layers[layer]
        self.vectors = {name: one[layer] for name, one in model.vectors.items() if name != "last_norm"}
        self.kind = self.config["layer_types"][layer]

    def times(self, place: str, x: Floats) -> Floats:
        return x @ self.matrices[place].floats().T.astype(np.float64)

    def norm(self, place: str, x: Floats) -> Floats:
        return _rms(x, self.vectors[place], self.config["rms_norm_eps"])

    def after(self, place: str, x: Floats) -> Floats:
        return self.norm(place, x) if place in self.vectors else x

    def mixed(self, x: Floats) -> Floats:
        if self.kind == mixers.CONVOLUTION:
            before, behind, values = np.split(self.times("mix", x), 3, axis=1)
            return self.times("o", behind * self.convolved(before * values))
        if self.kind == mixers.DELTA_NET:
            return self.times("o", self.delta_net(x))
        if self.kind == mixers.MAMBA:
            return self.times("o", self.mamba(x))
        return self.times("o", self.attention(x))

    def convolved(self, x: Floats) -> Floats:
        weights = self.vectors["conv"]
        width = weights.shape[1]
        padded = np.concatenate([np.zeros((width - 1, x.shape[1])), x])
        out = sum(padded[at : at + len(x)] * weights[:, at] for at in range(width))
        return out + self.vectors.get("conv_biases", 0.0)

    def attention(self, x: Floats) -> Floats:
        heads, kv_heads, size = model_config.heads_of(self.config)
        q = self.times("q", x).reshape(-1, heads, size)
        k, v = (self.times(place, x).reshape(-1, kv_heads, size) for place in "kv")
        if "query_norms" in self.vectors:
            q, k = self.norm("query_norms", q), self.norm("key_norms", k)
        rotation = model_config.rope_kinds(self.config)[self.number]
        if rotation >= 0:
            tables = model_config.rope_tables(self.config, len(x))
            layout = model_config.rotary_layouts(self.config)[rotation]
            cosines, sines = (one[rotation][:, None, : layout.pairs].astype(np.float64) for one in tables)
            q, k = (_turned(one, cosines, sines, layout.pairs, layout.offset) for one in (q, k))
        k, v = (np.repeat(one, heads // kv_heads, axis=1) for one in (k, v))
        scale = model_config.query_scales(self.config, 1)[0]
        scores = np.einsum("qhd,khd->hqk", q, k) * scale
        window = model_config.windows(self.config)[self.number]
        back = np.arange(len(x))[:, None] - np.arange(len(x))
        scores[:, (back < 0) | ((back >= window) & (window > 0))] = -np.inf
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", shares / shares.sum(axis=-1, keepdims=True), v)
        if "q_gate" in self.matrices:
            out = out * _sigmoid(self.times("q_gate", x)).reshape(len(x), heads, -1)
        return out.reshape(len(x), -1)

    def delta_net(self, x: Floats) -> Floats:
        mixer = mixers.mixer_of(self.config, self.kind)
        mix = _silu(self.convolved(self.times("mix", x)))
        first = mixer.keys * mixer.key_size
        q, k = (mix[:, at : at + first].reshape(len(x), mixer.keys, -1) for at in (0, first))
        q, k = (one / np.sqrt((one * one).sum(axis=-1, keepdims=True) + 1e-6) for one in (q, k))
        v = mix[:, 2 * first :].reshape(len(x), mixer.values, -1)
        values = np.arange(mixer.values)
        grouped = self.config.get("value_heads_grouped")
        key = values // (mixer.values // mixer.keys) if grouped else values % mixer.keys
        beta, alpha = _sigmoid(self.times("beta", x)), self.times("alpha", x) + self.vectors["step_biases"]
        decays = np.exp(self.vectors["decays"] * np.logaddexp(0, alpha))
        state, out = np.zeros((mixer.values, mixer.key_size, mixer.value_size)), np.empty_like(v)
        for row in range(len(x)):
            state *= decays[row][:, None, None]
            own = k[row][key]
            delta = beta[row][:, None] * (v[row] - np.einsum("hdv,hd->hv", state, own))
            state += own[:, :, None] * delta[:, None]
            out[row] = np.einsum("hdv,hd->hv", state, q[row][key]) / np.sqrt(mixer.key_size)
        return (self.norm("state_norms", out) * _silu(self.times("z", x).reshape(out.shape))).reshape(
            len(x), -1
        )

    def mamba(self, x: Floats) -> Floats:
        mixer = mixers.mixer_of(self.config, self.kind)
        mix, each = _silu(self.convolved(self.times("mix", x))), mixer.values // mixer.keys
        first, state_size = mixer.inner, mixer.keys * mixer.key_size
        values = mix[:, :first].reshape(len(x), mixer.values, -1)
        b, c = (
            np.repeat(mix[:, at : at + state_size].reshape(len(x), mixer.keys, -1), each, axis=1)
            for at in (first, first + state_size)
        )
        steps = np.logaddexp(0, self.times("alpha", x) + self.vectors["step_biases"])
        state, out = np.zeros((mixer.values, mixer.key_size, mixer.value_size)), np.empty_like(values)
        for row in range(len(x)):
            state *= np.exp(steps[row] * self.vectors["decays"])[:, None, None]
            state += b[row][:, :, None] * (steps[row][:, None] * values[row])[:, None]
            out[row] = np.einsum("hdv,hd->hv", state, c[row])
        out = (out + self.vectors["skips"][:, None] * values).reshape(len(x), -1)
        gated = (out * _silu(self.times("z", x))).reshape(len(x), mixer.keys, -1)
        weights = self.vectors["state_norms"].reshape(gated.shape[1:])
        return _rms(gated, weights, self.config["rms_norm_eps"]).reshape(len(x), -1)

    def mlp(self, x: Floats) -> Floats:
        out = self.of_experts(x) if "router" in self.matrices else self.product(x, "")
        if "dense_down" in self.matrices:
            shared = self.product(x, "dense_")
            out = out + (
                shared * _sigmoid(self.times("dense_scale", x)) if "dense_scale" in self.matrices else shared
            )
        return out

    def product(self, x: Floats, kind: str, expert: int | None = None) -> Floats:
        def times(place: str, x: Floats) -> Floats:
            if expert is None:
                return self.times(kind + place, x)
            matrix = self.matrices[place]
            rows = matrix.rows // self.matrices["router"].rows
            return x @ matrix.floats(np.arange(rows * expert, rows * (expert + 1))).T.astype(np.float64)

        if "gate" in self.matrices:
            return times("down", _silu(times("gate", x)) * times("up", x))
        return times("down", np.maximum(times("up", x), 0) ** 2)

    def of_experts(self, x: Floats) -> Floats:
        active = model_config.experts_of(self.config)[1]
        scores = self.times("router", x)
        by_sigmoid = self.config["model_type"] in ("lfm2_moe", "nemotron_h")
        chances = _sigmoid(scores) if by_sigmoid else np.exp(scores - scores.max(axis=1, keepdims=True))
        out = np.zeros_like(x)
        for row, mine in enumerate(chances):
            chosen = np.argsort(-(mine + self.vectors.get("score_biases", 0.0)))[:active]
            shares = mine[chosen] / mine[chosen].sum() * (self.config.get("routed_scaling_factor") or 1.0)
            for share, expert in zip(shares, chosen, strict=True):
                out[row] += share * self.product(x[row : row + 1], "", int(expert))[0]
        return out


def _turned(x: Floats, cosines: Floats, sines: Floats, pairs: int, offset: int) -> Floats:
    out, first, second = x.copy(), x[..., :pairs], x[..., offset : offset + pairs]
    out[..., :pairs] = first * cosines - second * sines
    out[..., offset : offset + pairs] = second * cosines + first * sines
    return out
