"""The linears of a transformers model with FP8 products, emulated in fp32: what current scaling and scaling by blocks compute.

Operands are FP8 values in the model's dtype; sums and everything else are in that dtype: fp32, or float64, where no order of
sums decides about a value at a rounding tie. Quantised are the linears of the blocks, forward and backward; embedding, head,
norms and attention are not."""
import torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def codes(x, scale, dtype):
    """Values of x times the scale in FP8. Those beyond the largest become it: torch's conversion would make them NaN."""
    largest = torch.finfo(dtype).max
    return (x * scale).clamp(-largest, largest).float().to(dtype).to(x.dtype)


def current(x, dtype):
    """Codes of the whole tensor with one scale, largest value / amax (1 when amax is 0 or not finite), and what a code of 1
    stands for."""
    amax, largest = x.abs().max(), torch.finfo(dtype).max
    if not (amax > 0 and torch.isfinite(largest / amax)):
        return codes(x, 1.0, dtype), torch.ones((), dtype=x.dtype)
    return codes(x, largest / amax, dtype), amax / largest


def power_of_two(amax):
    """The largest power of two that keeps amax within E4M3: 448 is 7/8 of 2 to the 9."""
    if not (amax > 0 and torch.isfinite(amax)):
        return torch.ones((), dtype=amax.dtype)
    fraction, exponent = torch.frexp(amax)
    return torch.exp2(torch.where(fraction <= 0.875, 9 - exponent, 8 - exponent).to(amax.dtype))


def by_blocks(x, rows, columns):
    """E4M3 and back with a scale for each block of rows x columns; those at the edges are smaller. Powers of two lose nothing,
    so that the scales need not wait for the product: what a code of 1 stands for is 1."""
    out = torch.empty_like(x)
    for r in range(0, x.shape[0], rows):
        for c in range(0, x.shape[1], columns):
            block = x[r:r + rows, c:c + columns]
            scale = power_of_two(block.abs().max())
            out[r:r + rows, c:c + columns] = codes(block, scale, E4M3) / scale
    return out, torch.ones((), dtype=x.dtype)


def product(a, b):
    """a b^T of two operands: the codes' sum, then the scales, as FP8 products do it."""
    return (a[0] @ b[0].t()) * (a[1] * b[1])


def turned(operand):
    return operand[0].t(), operand[1]


class Recipe:
    """What each product reads. `fused`: parts that share an input have one scale for their weights, and one for their output
    gradients. The gradient of the weight sums over tokens, and blocks lie along the sum."""

    def __init__(self, kind, fused):
        self.kind, self.fused = kind, fused

    def input(self, x):
        return by_blocks(x, 1, 128) if self.kind == "block" else current(x, E4M3)

    def input_over_tokens(self, x):
        return by_blocks(x, 128, 1) if self.kind == "block" else current(x, E4M3)

    def weight(self, w):
        return by_blocks(w, 128, 128) if self.kind == "block" else current(w, E4M3)

    def gradient(self, dy):
        return by_blocks(dy, 1, 128) if self.kind == "block" else current(dy, E5M2)

    def gradient_over_tokens(self, dy):
        return by_blocks(dy, 128, 1) if self.kind == "block" else current(dy, E5M2)


class Product(torch.autograd.Function):
    """y_i = x w_i^T of all parts that share x: one product where they are fused, else one a part."""

    @staticmethod
    def forward(ctx, recipe, x, *weights):
        flat = x.reshape(-1, x.shape[-1])
        rows = [w.shape[0] for w in weights]
        pieces = [torch.cat(weights)] if recipe.fused else list(weights)
        quantised = [recipe.weight(w) for w in pieces]
        ctx.operands = recipe.input_over_tokens(flat), quantised
        ctx.recipe, ctx.rows, ctx.shape = recipe, rows, x.shape
        operand = recipe.input(flat)
        y = torch.cat([product(operand, w) for w in quantised], dim=1)
        return tuple(part.reshape(*x.shape[:-1], -1) for part in y.split(rows, dim=1))

    @staticmethod
    def backward(ctx, *gradients):
        x, weights = ctx.operands
        flat = [g.reshape(-1, g.shape[-1]) for g in gradients]
        pieces = [torch.cat(flat, dim=1)] if ctx.recipe.fused else flat
        dx = sum(product(ctx.recipe.gradient(g), turned(w)) for g, w in zip(pieces, weights))
        dw = torch.cat([product(turned(ctx.recipe.gradient_over_tokens(g)), turned(x)) for g in pieces])
        return (None, dx.reshape(ctx.shape), *dw.split(ctx.rows))


class Part(torch.nn.Module):
    """One linear of a group: the first of them to be called computes all."""

    def __init__(self, group, index):
        super().__init__()
        self.group, self.index = [group], index  # in a list, so that it is not registered as a child

    def forward(self, x):
        group = self.group[0]
        if self.index == 0:
            group.results = Product.apply(group.recipe, x, *(w for w in group.weights))
        return group.results[self.index]


class Group:
    def __init__(self, owner, names, recipe):
        self.recipe = recipe
        linears = [getattr(owner, name) for name in names]
        if any(linear.bias is not None for linear in linears):
            raise ValueError("these references have no biases")
        self.weights = [linear.weight for linear in linears]
        for i, (name, linear) in enumerate(zip(names, linears)):
            part = Part(self, i)
            part.weight = linear.weight  # keeps the parameter under its name
            setattr(owner, name, part)


def replace_linears(model, kind, fused):
    """Puts FP8 products in place of the linears of all blocks."""
    recipe = Recipe(kind, fused)
    for block in model.model.layers:
        for owner, names in ((block.self_attn, ("q_proj", "k_proj", "v_proj")), (block.self_attn, ("o_proj",)),
                             (block.mlp, ("gate_proj", "up_proj")), (block.mlp, ("down_proj",))):
            Group(owner, names, recipe)
