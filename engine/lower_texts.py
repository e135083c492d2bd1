"""Categories of ai.onnx.ml: strings looked up by the host, their codes and all numbers as steps."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.columns import Codes
from graphdoc.engine.expr import F32, I64, Expr, apply, cast, index
from graphdoc.engine.lower import NotLowered, Site, constant, lowering
from graphdoc.engine.lower_layout import with_ones
from graphdoc.engine.lower_trees import ML
from graphdoc.engine.program import View


def _categories(cats_strings: Sequence[str] | None = None, zeros: int = 1, **_: Any) -> Callable[[Any], Any]:
    return Codes(cats_strings or (), strict=not zeros)


@lowering("OneHotEncoder", domain=ML, codes=_categories)
def one_hot_encoder(
    at: Site,
    X: View,
    *,
    cats_int64s: Sequence[int] | None = None,
    cats_strings: Sequence[str] | None = None,
    zeros: int = 1,
) -> View:
    """One axis more, 1 at the element's category: its code, or the last category that is the number."""
    column = with_ones(X, [len(X.shape)])
    if at.coded:
        shape = (*X.shape, len(cats_strings or cats_int64s or ()))
        return at.map(lambda x: cast(apply("eq", x, index(len(X.shape))), F32), column, shape=shape)
    numbers = list(cats_int64s or ())
    if not zeros or len(set(numbers)) != len(numbers) or not numbers:
        raise NotLowered("unknown categories are refused, or categories repeat")
    table = constant(np.asarray(numbers, np.int64), at.name)

    def hit(x: Expr, category: Expr) -> Expr:
        return cast(apply("eq", cast(x, I64), category), F32)

    return at.map(hit, column, table)
