"""Shapes of the models that the programs of this folder time, named as `trainer bench` names them."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Delta:
    """A gated delta rule in place of attention."""
    key_heads: int
    value_heads: int
    head_dim: int
    chunk: int = 64  # tokens between two states that backward reads

    @property
    def values(self):
        return self.value_heads * self.head_dim

    @property
    def qkv(self):
        return 2 * self.key_heads * self.head_dim + self.values

    @property
    def projected(self):
        """Queries, keys, values, gates of the output, and two gates of each head."""
        return self.qkv + self.values + 2 * self.value_heads

    @property
    def state(self):
        """Values of a state, for each token."""
        return self.values * self.head_dim / self.chunk


@dataclasses.dataclass(frozen=True)
class Shape:
    """A Llama-shaped transformer: gated MLP, grouped queries, no biases."""
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_dim: int
    tied: bool = False
    gated: bool = False  # each query head has a gate
    delta: "Delta | None" = None  # all blocks except every fourth

    @property
    def q(self):
        """Rows of the q matrix."""
        return (2 if self.gated else 1) * self.heads * self.head_dim

    @property
    def qkv(self):
        """Rows of the q, k and v matrices together."""
        return self.q + 2 * self.kv_heads * self.head_dim

    def is_delta(self, layer):
        return self.delta is not None and (layer + 1) % 4 != 0

    @property
    def deltas(self):
        return sum(self.is_delta(layer) for layer in range(self.layers))

    @property
    def block_matrices(self):
        """Parameters of the matrices of a block with attention."""
        return self.hidden * (self.qkv + self.heads * self.head_dim + 3 * self.intermediate)

    @property
    def matrices(self):
        """Parameters of the matrices of all blocks."""
        all_ = (self.layers - self.deltas) * self.block_matrices
        if self.delta:
            all_ += self.deltas * self.hidden * (self.delta.projected + self.delta.values + 3 * self.intermediate)
        return all_

    @property
    def parameters(self):
        tables = 1 if self.tied else 2
        norms = (2 * self.layers + 1) * self.hidden
        return self.matrices + tables * self.vocabulary * self.hidden + norms

    def flops_per_token(self, length):
        """Model FLOPs of a token in training: 6 times the parameters without the input embedding (a tied table is the
        head), and causal attention; nothing is counted twice for recomputation."""
        used = self.parameters - (0 if self.tied else self.vocabulary * self.hidden)
        return 6 * used + 6 * (self.layers - self.deltas) * length * self.heads * self.head_dim


MODELS = {
    "llama-3.1-8b": Shape(4096, 14336, 32, 32, 8, 128256, 128),
    "llama-3.2-1b": Shape(2048, 8192, 16, 32, 8, 128256, 64, tied=True),
    "qwen2.5-0.5b": Shape(896, 4864, 24, 14, 2, 151936, 64, tied=True),
    "qwen3.5-9b": Shape(4096, 12288, 32, 16, 4, 248320, 256, gated=True, delta=Delta(16, 32, 128)),
    # tests/bench/tiny.json
    "tiny": Shape(256, 768, 4, 8, 4, 4096, 32),
}
