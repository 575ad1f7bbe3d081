"""Shapes of the models that the programs of this folder time, named as `trainer bench` names them."""
import dataclasses


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

    @property
    def qkv(self):
        """Rows of the q, k and v matrices together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def block_matrices(self):
        """Parameters of a block's matrices."""
        return self.hidden * (self.qkv + self.heads * self.head_dim + 3 * self.intermediate)

    @property
    def parameters(self):
        tables = 1 if self.tied else 2
        norms = (2 * self.layers + 1) * self.hidden
        return self.layers * self.block_matrices + tables * self.vocabulary * self.hidden + norms

    def flops_per_token(self, length):
        """Model FLOPs of a token in training: 6 times the parameters without the input embedding (a tied table is the
        head), and causal attention; nothing is counted twice for recomputation."""
        used = self.parameters - (0 if self.tied else self.vocabulary * self.hidden)
        return 6 * used + 6 * self.layers * length * self.heads * self.head_dim


MODELS = {
    "llama-3.1-8b": Shape(4096, 14336, 32, 32, 8, 128256, 128),
    "llama-3.2-1b": Shape(2048, 8192, 16, 32, 8, 128256, 64, tied=True),
    "qwen2.5-0.5b": Shape(896, 4864, 24, 14, 2, 151936, 64, tied=True),
    # tests/bench/tiny.json
    "tiny": Shape(256, 768, 4, 8, 4, 4096, 32),
}
