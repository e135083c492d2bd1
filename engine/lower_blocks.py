"""Elements moved between channels and space, and other small operators made of the same pieces."""

from graphdoc.engine.expr import DTYPES, Expr, apply, cast, const, index, load, stage
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.lower import NotLowered, Site, lowering, memory_order
from graphdoc.engine.lower_elementwise import like, wide, wide_dtype
from graphdoc.engine.lower_layout import padded
from graphdoc.engine.lower_rows import floats_only
from graphdoc.engine.program import View


def _image(x: View) -> tuple[int, int, int, int]:
    if len(x.shape) != 4:
        raise ValueError(f"rank {len(x.shape)} is not 4")
    n, c, h, w = x.shape
    return n, c, h, w


@lowering("DepthToSpace")
def depth_to_space(at: Site, x: View, *, blocksize: int, mode: str = "DCR") -> View:
    """(N, C, H, W) → (N, C / b², H·b, W·b)."""
    n, c, h, w = _image(x)
    b, depth = blocksize, c // blocksize**2
    if depth * b * b != c or mode not in ("DCR", "CRD"):
        raise ValueError(f"{c} channels do not divide into blocks of {b}×{b}")
    if mode == "DCR":
        y = at.reshape(x, (n, b, b, depth, h, w)).permuted((0, 3, 4, 1, 5, 2))
    else:
        y = at.reshape(x, (n, depth, b, b, h, w)).permuted((0, 1, 4, 2, 5, 3))
    return at.reshape(y, (n, depth, h * b, w * b))


@lowering("SpaceToDepth")
def space_to_depth(at: Site, x: View, *, blocksize: int, mode: str = "DCR") -> View:
    """(N, C, H, W) → (N, C·b², H / b, W / b)."""
    n, c, h, w = _image(x)
    b = blocksize
    if h % b or w % b or mode not in ("DCR", "CRD"):
        raise ValueError(f"{h}×{w} does not divide into blocks of {b}×{b}")
    blocks = at.reshape(x, (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return at.reshape(blocks.permuted(order), (n, c * b * b, h // b, w // b))


@lowering("LRN")
def lrn(at: Site, x: View, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> View:
    """x ÷ (bias + alpha/size · Σ x²)^beta, the sum over ``size`` neighbouring channels."""
    floats_only(x)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    rank = len(x.shape)
    margins = [(before, after) if axis == 1 else (0, 0) for axis in range(rank)]
    wider = padded(at, x, [b for b, _ in margins], [a for _, a in margins])
    order = memory_order(x)
    near = View(wider.buffer, (*x.shape, size), (*wider.strides, wider.strides[1]), wider.offset)
    own = View(x.buffer, (*x.shape, size), (*x.strides, 0), x.offset)
    element = wide(load(0, x.dtype))
    total = Reduction("sum", apply("mul", element, element))
    sums = stage(0, element.dtype)
    base = apply("add", like(bias, sums), apply("mul", like(alpha / size, sums), sums))
    y = apply("div", wide(load(1, x.dtype)), apply("pow", base, like(beta, base)))
    out = at.fresh(x.shape, x.dtype, x)
    spec = Rows(1, (total,), (Output(cast(y, x.dtype), full=False),))
    at.step(spec, [v.permuted([*order, rank]) for v in (near, own)], [out.permuted(order)])
    return out


@lowering("Celu")
def celu(at: Site, x: View, *, alpha: float = 1.0) -> View:
    """max(0, x) + min(0, alpha·(exp(x ÷ alpha) − 1))."""
    floats_only(x)

    def build(element: Expr) -> Expr:
        e = wide(element)
        curve = apply("mul", like(alpha, e), apply("expm1", apply("div", e, like(alpha, e))))
        both = apply("add", apply("max", e, like(0, e)), apply("min", curve, like(0, e)))
        return cast(both, element.dtype)

    return at.map(build, x)


@lowering("Shrink")
def shrink(at: Site, x: View, *, bias: float = 0.0, lambd: float = 0.5) -> View:
    """x + bias below −lambd, x − bias above lambd, else 0."""
    floats_only(x)

    def build(element: Expr) -> Expr:
        e = wide(element)
        low, high = apply("lt", e, like(-lambd, e)), apply("lt", like(lambd, e), e)
        outside = apply("select", low, apply("add", e, like(bias, e)), apply("sub", e, like(bias, e)))
        return cast(apply("select", apply("or", low, high), outside, like(0, e)), element.dtype)

    return at.map(build, x)


@lowering("CumSum")
def cum_sum(at: Site, x: View, axis: View, *, exclusive: int = 0, reverse: int = 0) -> View:
    """Running sums along the axis: each the sum of a masked row, for axes so short that this is soon done."""
    if x.dtype not in DTYPES[1:]:
        raise NotLowered(f"dtype {x.dtype}")
    where = int(at.known(axis, "the axis").reshape(())) % max(1, len(x.shape))
    count = x.shape[where]
    if count > _SHORT:
        raise NotLowered("a long axis")
    return _running(at, x, where, bool(exclusive), bool(reverse))


_SHORT = 64
"""Entries up to which a running sum is made of sums: they cost the square of it."""


def _running(at: Site, x: View, where: int, exclusive: bool, reverse: bool) -> View:
    kind = wide_dtype(x.dtype)
    rank, count = len(x.shape), x.shape[where]
    source = View(
        x.buffer,
        (*(count if a == where else n for a, n in enumerate(x.shape)), count),
        (*(0 if a == where else s for a, s in enumerate(x.strides)), x.strides[where]),
        x.offset,
    )
    own, other = index(where), index(rank)
    first, second = (own, other) if reverse else (other, own)
    inside = apply("lt" if exclusive else "le", first, second)
    element = apply("select", inside, cast(load(0, x.dtype), kind), const(0, kind))
    out = at.fresh(x.shape, x.dtype, x)
    result = Output(cast(stage(0, kind), x.dtype), full=False)
    at.step(Rows(1, (Reduction("sum", element),), (result,)), [source], [out])
    return out
