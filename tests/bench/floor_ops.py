"""What `step_floor` runs: products, attention, copies and collectives on buffers of their own, with random contents, for the
power that a card draws depends on them."""
import torch

E4M3, E5M2, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
COPY_BYTES = 128 << 20  # of a copy at most: beyond what caches hold


class Ops:
    """Buffers and products, the same on both devices."""

    def __init__(self, shape, arguments, device):
        self.shape, self.a, self.device = shape, arguments, device
        self.tokens = arguments.micro * arguments.seq
        self.fp8 = arguments.precision == "fp8"
        self.one = torch.ones((), device=device)
        self.from_, self.to = (self.random(COPY_BYTES // 2) for _ in range(2))
        self.linears = {}
        self.adapted = {}
        rows, words, width = arguments.head_rows, shape.vocabulary, shape.hidden
        self.head = {"x": self.random(rows, width), "w": self.random(words, width), "y": self.random(rows, words),
                     "dx": self.empty(rows, width), "dw": self.empty(words, width)}

    def random(self, *size, dtype=BF16):
        return torch.randn(*size, device=self.device).to(dtype)

    def empty(self, *size):
        return torch.empty(*size, device=self.device, dtype=BF16)

    def linear(self, outputs, inputs):
        """Operands of y = x w^T and of its gradients, as each product reads them, and its three results."""
        made = {"y": self.empty(self.tokens, outputs), "dx": self.empty(self.tokens, inputs),
                "dw": self.empty(outputs, inputs)}
        if self.fp8:
            made |= {"x": self.random(self.tokens, inputs, dtype=E4M3), "x_t": self.random(inputs, self.tokens, dtype=E4M3),
                     "w": self.random(outputs, inputs, dtype=E4M3), "w_t": self.random(inputs, outputs, dtype=E4M3),
                     "dy": self.random(self.tokens, outputs, dtype=E5M2),
                     "dy_t": self.random(outputs, self.tokens, dtype=E5M2)}
        else:
            made |= {"x": self.random(self.tokens, inputs), "w": self.random(outputs, inputs),
                     "dy": self.random(self.tokens, outputs)}
        return made

    def scaled(self, a, b, out, fast):
        torch._scaled_mm(a, b.t(), self.one, self.one, out_dtype=BF16, use_fast_accum=fast, out=out)

    def product(self, kind, outputs, inputs):
        if (outputs, inputs) not in self.linears:
            self.linears[outputs, inputs] = self.linear(outputs, inputs)
        t = self.linears[outputs, inputs]
        fast = self.a.fast_backward
        if kind == "forward":
            self.scaled(t["x"], t["w"], t["y"], True) if self.fp8 else torch.mm(t["x"], t["w"].t(), out=t["y"])
        elif kind == "input gradient":
            self.scaled(t["dy"], t["w_t"], t["dx"], fast) if self.fp8 else torch.mm(t["dy"], t["w"], out=t["dx"])
        else:
            self.scaled(t["dy_t"], t["x_t"], t["dw"], fast) if self.fp8 else torch.mm(t["dy"].t(), t["x"], out=t["dw"])

    def adapter(self, outputs, inputs):
        """Operands of y += u B^T with u = x A^T, for modules side by side that read one x, and of their gradients."""
        ranks = self.a.lora * len(outputs)
        key = (tuple(outputs), inputs)
        if key not in self.adapted:
            self.adapted[key] = {
                "x": self.random(self.tokens, inputs), "dx": self.random(self.tokens, inputs),
                "y": self.random(self.tokens, sum(outputs)), "dy": self.random(self.tokens, sum(outputs)),
                "a": self.random(ranks, inputs), "da": self.empty(ranks, inputs),
                "u": self.random(self.tokens, ranks), "du": self.empty(self.tokens, ranks),
                "b": [self.random(count, self.a.lora) for count in outputs],
                "db": [self.empty(count, self.a.lora) for count in outputs]}
        return self.adapted[key]

    def adapters(self, backward, outputs, inputs):
        t, rank, column = self.adapter(outputs, inputs), self.a.lora, 0
        if not backward:
            torch.mm(t["x"], t["a"].t(), out=t["u"])
        for i, count in enumerate(outputs):
            own = slice(i * rank, (i + 1) * rank)
            if backward:
                d_part = t["dy"][:, column:column + count]
                t["du"][:, own].copy_(torch.mm(d_part, t["b"][i]))
                torch.mm(d_part.t(), t["u"][:, own], out=t["db"][i])
            else:
                t["y"][:, column:column + count].addmm_(t["u"][:, own], t["b"][i].t())
            column += count
        if backward:
            t["dx"].addmm_(t["du"], t["a"])
            torch.mm(t["du"].t(), t["x"], out=t["da"])

    def head_product(self, kind, rows):
        h = self.head
        if kind == "forward":
            torch.mm(h["x"], h["w"].t(), out=h["y"])
        elif kind == "input gradient":
            torch.mm(h["y"], h["w"], out=h["dx"])
        else:
            torch.mm(h["y"].t(), h["x"], out=h["dw"])

    def traffic(self, count):
        """Half of the bytes are read and half written."""
        left = count // 4
        while left > 0:
            part = min(left, self.from_.numel())
            self.to[:part].copy_(self.from_[:part])
            left -= part

    def heads(self, count):
        """[sequences, heads, positions, width], stored position by position, as products leave them. Heads wider than 128 stand
        as several of 128, with as many operations: cuDNN's backward is slower for wide heads."""
        width = min(self.shape.head_dim, 128)
        return self.random(self.a.micro, self.a.seq, count * self.shape.head_dim // width, width).transpose(1, 2)

    def collective(self, kind):
        pass

    def join(self):
        pass


class CpuOps(Ops):
    def __init__(self, shape, arguments):
        super().__init__(shape, arguments, torch.device("cpu"))
        self.q = self.heads(shape.heads).requires_grad_()
        self.k, self.v = (self.heads(shape.kv_heads).requires_grad_() for _ in range(2))

    def attention(self, backward):
        with torch.enable_grad():
            out = torch.nn.functional.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=True, enable_gqa=True)
            if backward:
                torch.autograd.grad(out, (self.q, self.k, self.v), torch.ones_like(out))


class GpuOps(Ops):
    def __init__(self, shape, arguments, world):
        super().__init__(shape, arguments, torch.device("cuda"))
        self.world = world
        self.q, self.d_out = self.heads(shape.heads), self.heads(shape.heads)
        self.k, self.v = self.heads(shape.kv_heads), self.heads(shape.kv_heads)
        self.kept = None
        self.side = torch.cuda.Stream(priority=-1)
        self.forked, self.turn = False, 0
        if world > 1:
            # A block's parameters at two bytes each, in three buffers by turns: two collectives may be under way.
            self.count = shape.block_matrices // world * world
            self.whole = [torch.zeros(2 * self.count, dtype=torch.uint8, device="cuda") for _ in range(3)]
            self.part = torch.zeros(4 * self.count // world, dtype=torch.uint8, device="cuda")

    def attention(self, backward):
        """cuDNN's kernels by name: autograd would choose among several and keep what it likes."""
        op, scale = torch.ops.aten, self.q.shape[-1]**-0.5
        if not backward:
            self.kept = op._scaled_dot_product_cudnn_attention(self.q, self.k, self.v, None, True, 0.0, True, False, scale=scale)
            return
        if self.kept is None:
            self.attention(backward=False)
        out, log_sums, sums_q, sums_k, longest_q, longest_k, seed, offset, _ = self.kept
        op._scaled_dot_product_cudnn_attention_backward(
            self.d_out, self.q, self.k, self.v, out, log_sums, seed, offset, None, sums_q, sums_k, longest_q, longest_k,
            0.0, True, scale=scale)

    def collective(self, kind):
        """One block's, beside the compute, behind everything enqueued so far."""
        if self.world == 1:
            return
        size = self.a.gather_bytes if kind == "gather" else self.a.reduce_bytes
        dtype = {1: torch.uint8, 2: BF16, 4: torch.float32}[size]
        pieces = 2 if size == 4 else 1  # the buffers hold two bytes a parameter
        self.forked = True
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for _ in range(pieces):
                self.turn += 1
                count = self.count // pieces // self.world * self.world
                whole = self.whole[self.turn % 3][:count * size].view(dtype)
                part = self.part[:count * size // self.world].view(dtype)
                if kind == "gather":
                    torch.distributed.all_gather_into_tensor(whole, part)
                elif kind == "reduce":
                    torch.distributed.reduce_scatter_tensor(part, whole)
                else:
                    torch.distributed.all_reduce(whole)

    def join(self):
        if self.forked:
            torch.cuda.current_stream().wait_stream(self.side)
            self.forked = False
