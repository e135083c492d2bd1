"""Winograd's convolutions as machine code: transform some tiles, multiply point by point, transform back.

A thread takes a group of tiles at a time, so that what it keeps of them stays in cache: V, the transformed
image, as [point][tile][channel]; then, panel of columns by panel, M, the products, as [point][tile][column].
The products are the tiles of sums that contractions use. Threads share the tiles, or where these are few the
panels; then each of them transforms all tiles.
"""

from collections.abc import Sequence

from graphdoc.engine.device.llvm.builder import Function, Kernel, Number, Target, Value, number, vector
from graphdoc.engine.device.llvm.contraction_axes import select
from graphdoc.engine.device.llvm.contraction_columns import Column, Columns
from graphdoc.engine.device.llvm.contraction_sums import Precision, Sums, fetched
from graphdoc.engine.device.llvm.lanes import Lanes
from graphdoc.engine.device.llvm.winograd_plan import Plan, plan_of
from graphdoc.engine.device.llvm.winograd_transform import Transform
from graphdoc.engine.expr import leaves
from graphdoc.engine.kernels.winograd import Winograd, transforms
from graphdoc.engine.program import Axes, Step


def tactics_winograd(step: Step, target: Target) -> list[str]:
    """Return the one way there is: the size of the tiles is chosen with the specification."""
    return ["grouped"]


def emit_winograd(step: Step, target: Target, tactic: str | None = None) -> Kernel:
    """Return the kernel of a step whose spec is a Winograd of float32."""
    return _Emitter(step, plan_of(step, target), target).kernel()


class _Emitter:
    """One kernel under construction."""

    def __init__(self, step: Step, plan: Plan, target: Target) -> None:
        assert isinstance(step.spec, Winograd)  # noqa: S101  the table dispatches on the type
        self.f = f = Function()
        self.spec, self.plan = step.spec, plan
        self.size, self.points = self.spec.size, (self.spec.size + 2) ** 2
        self.lanes = plan.tile.lanes
        self.precision = Precision(f, target, self.spec.accumulate)
        self.kind = self.precision.kind
        self.line = vector(self.kind, self.lanes)
        self.columns = Columns(f, self.lanes, target)
        self.numbers = [k for k in leaves((self.spec.epilogue,), "input") if k >= 2]
        self.views = [
            step.inputs[0],
            step.inputs[1],
            *(step.inputs[k] for k in self.numbers),
            step.outputs[0],
        ]
        positions = (0, 1, *self.numbers, len(step.inputs))
        self.bases = [f.argument(p) for p in positions]
        self.scratch = f.argument(len(step.inputs) + len(step.outputs))
        self._read_dims()
        lanes = Lanes(f, self.lanes)
        out, _, image = transforms(self.size)
        self.inward, self.outward = Transform(lanes, image), Transform(lanes, out)

    def _read_dims(self) -> None:
        f, plan = self.f, self.plan
        self.d_tiles, self.d_across, self.d_down = f.dim(plan.tiles), f.dim(plan.across), f.dim(plan.down)
        self.d_last_y, self.d_last_x = f.dim(plan.y - self.size), f.dim(plan.x - self.size)
        self.d_group, self.d_panels = f.dim(plan.group), f.dim(plan.panels)
        self.d_channels = f.dim(plan.channels)
        self.d_v, self.d_m = f.dim(plan.v_pitch), f.dim(plan.m_pitch)
        self.d_u = f.dim(plan.channels * plan.tile.columns)
        self.strides = [[f.dim(s) if s else 0 for s in view.strides[:3]] for view in self.views]
        steps: list[Number] = [s if s in (0, 1) else f.dim(s) for s in (v.strides[-1] for v in self.views)]
        self.rows = [Column(view.dtype, step) for view, step in zip(self.views, steps, strict=True)]
        dtype = self.spec.accumulate
        axes: Axes = [(plan.channels, (1, plan.tile.columns))]
        self.sums = Sums(self.precision, plan.tile, (dtype, dtype), axes, gapped=False)
        self.v = self.scratch
        self.m = f.at(self.v, f.mul(self.d_v, self.points), self.kind)
        self.buffer = f.at(self.m, f.mul(self.d_m, self.points), self.kind)

    def kernel(self) -> Kernel:
        """Emit everything."""
        f, plan = self.f, self.plan
        tiles: tuple[Number, Number] = (0, self.d_tiles)
        panels: tuple[Number, Number] = (0, self.d_panels)
        if plan.by_panels:
            panels = f.share(self.d_panels)
        else:
            tiles = f.share(self.d_tiles)
        count = f.sub(tiles[1], tiles[0])
        groups = f.idiv(f.sub(f.add(count, self.d_group), 1), self.d_group)
        each = f.idiv(f.sub(f.add(count, groups), 1), groups)
        with f.loop(tiles[0], tiles[1], each) as (start, _):
            here = f.least(f.sub(tiles[1], start), each)
            with f.loop(0, here) as (tile, _):
                self._inward(tile, f.add(start, tile))
            with f.loop(panels[0], panels[1]) as (panel, _):
                self._multiply(panel, here)
                with f.loop(0, here) as (tile, _):
                    self._outward(panel, tile, f.add(start, tile))
        return f.kernel(plan.scratch, plan.threads)

    def _place(self, tile: Number) -> tuple[list[Number], list[Number]]:
        """Return a tile's first output (n, y, x), and how many rows and columns another tile writes."""
        f, plan = self.f, self.plan
        rest, tx = f.idiv(tile, self.d_across), f.mod(tile, self.d_across)
        n, ty = f.idiv(rest, self.d_down), f.mod(rest, self.d_down)
        at_y, at_x = f.mul(ty, self.size), f.mul(tx, self.size)
        y = f.least(at_y, self.d_last_y) if plan.y % self.size else at_y
        x = f.least(at_x, self.d_last_x) if plan.x % self.size else at_x
        return [n, y, x], [f.sub(at_y, y) if y is not at_y else 0, f.sub(at_x, x) if x is not at_x else 0]

    def _start(self, operand: int, base: Value, place: Sequence[Number]) -> Value:
        """Return the address of an operand's element at a place (n, y, x) of column 0."""
        f, here = self.f, base
        for at, stride in zip(place, self.strides[operand], strict=True):
            here = f.at(here, f.mul(at, stride), self.rows[operand].element)
        return here

    # ---- the three parts -----------------------------------------------------------------------------

    def _inward(self, tile: Number, number_of: Number) -> None:
        """Emit the transform of a tile's image into V."""
        f, p = self.f, self.size + 2
        place, _ = self._place(number_of)
        source, dtype = self._start(0, self.bases[0], place), self.views[0].dtype
        element = self.rows[0].element
        _, sy, sx = self.strides[0]
        target = f.at(self.v, f.mul(tile, self.d_channels), self.kind)
        with f.loop(0, self.d_channels, self.lanes) as (c, _):
            image, result = f.at(source, c, element), f.at(target, c, self.kind)
            with f.loop(0, p) as (j, _):
                column = f.at(image, f.mul(j, sx), element)
                places = [f.at(column, f.mul(sy, i), element) for i in range(p)]
                read = [f.load(vector(element, self.lanes), place) for place in places]
                self._keep(j, self.inward.apply([self.precision.widened(x, dtype) for x in read]))
            with f.loop(0, p) as (row, _):
                kept = [f.load(self.line, self._kept(f.add(f.mul(row, p), at))) for at in range(p)]
                for at, value in enumerate(self.inward.apply(kept)):
                    f.store(value, f.at(result, f.mul(f.add(f.mul(row, p), at), self.d_v), self.kind))

    def _keep(self, column: Number, values: Sequence[Value]) -> None:
        """Write a column of the half-transformed tile."""
        for i, value in enumerate(values):
            self.f.store(value, self._kept(self.f.add(column, i * (self.size + 2))))

    def _kept(self, at: Number) -> Value:
        """Return the address of vector ``at`` of the half-transformed tile."""
        return self.f.at(self.buffer, self.f.mul(at, self.lanes), self.kind)

    def _multiply(self, panel: Number, count: Number) -> None:
        """Emit M = V · U for a panel of columns, point by point, some rows of tiles at a time."""
        f, tile = self.f, self.plan.tile
        blocks = f.idiv(f.add(count, tile.rows - 1), tile.rows)
        full = f.sub(blocks, f.sub(f.mul(blocks, tile.rows), count))
        weights = f.at(self.bases[1], f.mul(f.mul(panel, self.d_u), self.points), self.kind)
        with f.loop(0, self.points) as (p, _):
            image, product = (
                f.at(base, f.mul(p, d), self.kind) for base, d in ((self.v, self.d_v), (self.m, self.d_m))
            )
            line = f.at(weights, f.mul(p, self.d_u), self.kind)
            with f.loop(0, blocks) as (block, _):
                past = f.sub(block, full)
                short = f.op(f"icmp sge {block}, {number(full).name}", "i1")
                back = select(f, short, f.least(past, block), 0)
                row = f.sub(f.mul(block, tile.rows), back)
                ahead = f.at(
                    f.at(line, self.d_u, self.kind),
                    f.mul(f.mul(self.d_channels, fetched(self.precision.target)), block),
                    "i8",
                )
                self._rows(image, product, line, (row, short, ahead))

    def _rows(self, image: Value, product: Value, line: Value, block: tuple[Number, Value, Value]) -> None:
        """Emit the sums of a block of tiles: its first row, whether one lacks, what to fetch meanwhile."""
        row, short, ahead = block
        f, tile = self.f, self.plan.tile
        first = f.at(image, f.mul(row, self.d_channels), self.kind)
        totals = f.at(product, f.mul(row, tile.columns), self.kind)
        addresses = [f.at(first, f.mul(self.d_channels, i), self.kind) for i in range(tile.rows)]
        if tile.rows == 1:
            self.sums.emit(addresses, line, totals)
            return
        for less in (False, True):
            with f.when(short if less else f.op(f"xor {short}, true", "i1")):
                self.sums.emit(addresses[: tile.rows - less], line, totals, ahead=ahead)

    def _outward(self, panel: Number, tile: Number, number_of: Number) -> None:
        """Emit the transform of a tile's products back, its epilogue and its outputs."""
        f, columns = self.f, self.plan.tile.columns
        place, skipped = self._place(number_of)
        column = f.mul(panel, columns)
        starts = [
            f.at(self._start(o, self.bases[o], place), f.mul(column, self.rows[o].step), self.rows[o].element)
            for o in range(2, len(self.views))
        ]
        product = f.at(self.m, f.mul(tile, columns), self.kind)
        with f.loop(0, columns, self.lanes) as (v, _):
            self._halves(f.at(product, v, self.kind))
            here = [
                f.at(start, f.mul(v, row.step), row.element)
                for start, row in zip(starts, self.rows[2:], strict=True)
            ]
            with f.loop(skipped[0], self.size) as (i, _):
                self._output_row(i, here, skipped[1])

    def _halves(self, product: Value) -> None:
        """Emit the transform along columns of one vector of a tile's products."""
        f, p = self.f, self.size + 2
        with f.loop(0, p) as (j, _):
            loaded = [
                f.load(self.line, f.at(product, f.mul(f.add(j, i * p), self.d_m), self.kind))
                for i in range(p)
            ]
            self._keep(j, self.outward.apply(loaded))

    def _output_row(self, i: Number, starts: list[Value], skipped: Number) -> None:
        """Emit row i of a tile's outputs, the columns from ``skipped`` on."""
        f, p = self.f, self.size + 2
        row = [f.load(self.line, self._kept(f.add(f.mul(i, p), j))) for j in range(p)]
        for j, total in enumerate(self.outward.apply(row)):
            if skipped == 0:
                self._finish(i, j, starts, total)
                continue
            with f.when(f.op(f"icmp sge i64 {j}, {number(skipped).name}", "i1")):
                self._finish(i, j, starts, total)

    def _finish(self, i: Number, j: int, starts: list[Value], total: Value) -> None:
        f, operands = self.f, []
        for o, start in enumerate(starts, 2):
            _, sy, sx = self.strides[o]
            here = f.at(start, f.add(f.mul(i, sy), f.mul(sx, j)), self.rows[o].element)
            operands.append((self.rows[o], here))
        self.columns.finish(self.spec.epilogue, total, self.numbers, operands, (0, None))
