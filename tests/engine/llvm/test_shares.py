"""Steps cut into shares: the same bits however many threads take them, and none left out."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from graphdoc.engine.device.llvm.table import shares
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.level1 import compiled

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,32,80,88] x) => (float[1,32,40,44] y, float[1,160,1408] z)
<float[32,32,3,3] w, float[32] b, float[64,32,1,1] v, float[1408,1408] m, int64[3] s = {1, 160, 1408}>
{
    c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu (c)
    d = Conv (r, v)
    e = Tanh (d)
    u, o = Split <axis = 1> (e)
    y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (u)
    f = Reshape (o, s)
    g = MatMul (f, m)
    z = Softmax (g)
}
"""


def model() -> ir.Model:
    """Return a model whose steps are long enough to be cut finely: products, tiles, maps, rows."""
    proto = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for weight in list(proto.graph.value_info):
        shape = [d.dim_value for d in weight.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:], initial=1)))
        proto.graph.initializer.append(numpy_helper.from_array(array, weight.name))
    del proto.graph.value_info[:]
    return ir.serde.deserialize_model(proto)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_bits_do_not_depend_on_threads(threads: int) -> None:
    """Against one thread to the bit, several times, and against level 0 within rounding."""
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 32, 80, 88), np.float32)}
    one = compiled(model(), threads=1).run(feeds)
    for name, value in Interpreter(model()).run(feeds).items():
        # sums of 288, 32 and 1408 products of numbers about 1, then tanh and softmax: some 80 roundings
        np.testing.assert_allclose(one[name], value, rtol=1e-4, atol=1e-5)

    many = compiled(model(), threads=threads)
    many.run(feeds)
    kernels = [k for stage in many.stages() for part in stage.parts for k in part.executable.kernels]
    assert max(shares(k.threads, threads) for k in kernels if k is not None) > 2 * threads
    for _ in range(4):
        found = many.run(feeds)
        for name, value in one.items():
            np.testing.assert_array_equal(found[name], value)
