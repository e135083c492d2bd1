"""Contractions for processors other than this one: what their code consists of, read from the assembly.

A processor may multiply pairs, add them and add that to a sum at once (``vpdpwssd``): LLVM chooses.
"""

import re
from collections.abc import Iterator

import numpy as np
import pytest

from graphdoc.engine.device.llvm.builder import Target
from graphdoc.engine.device.llvm.contraction import emit_contraction, tactics_contraction
from graphdoc.engine.device.llvm.pack import prepare_contractions
from graphdoc.engine.expr import F32, I8, I32, U8, Dtype, load
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.program import Buffer, Kind, Program, Step, whole

llvm = pytest.importorskip("llvmlite.binding")

AVX512 = Target("cascadelake", "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx2,+sse2,+f16c,+fma", 64, 32)
VNNI = Target("cascadelake", f"{AVX512.features},+avx512vnni", 64, 32)
AVX2 = Target("haswell", "+avx2,+fma,+f16c,+sse2", 32, 16)
AVX_VNNI = Target("alderlake", f"{AVX2.features},+avxvnni", 32, 16)
NEON = Target("neoverse-n1", "", 16, 32)
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
CODES, FLOATS = (U8, I8, I32), (F32, F32, F32)
TURNED = (I8, U8, I32)
"""Codes that have to be shifted for an instruction that wants unsigned times signed."""


def product(dtypes: tuple[Dtype, Dtype, Dtype]) -> Step:
    """Return a product of 196 rows, 256 terms and 256 columns with a constant."""
    a, b, y = dtypes
    weights = whole(Buffer("b", b, 256 * 256, Kind.CONSTANT, np.ones(256 * 256, b)), (256, 256))
    spec = Contraction(0, 1, 1, load(-1, y), y)
    out = whole(Buffer("y", y, 196 * 256), (196, 256))
    return Step(spec, (whole(Buffer("a", a, 196 * 256), (196, 256)), weights), (out,))


def assembly(step: Step, target: Target, triple: str) -> str:
    """Return the assembly of a step's kernel."""
    (ready,) = prepare_contractions(Program([step]), target).steps
    kernel = emit_contraction(ready, target)
    assert kernel is not None
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        found = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        pytest.skip(f"this LLVM lacks the processor: {error}")
    machine = found.create_target_machine(cpu=target.cpu, features=target.features, opt=2)
    text = kernel.text + '\nattributes #0 = { nounwind "prefer-vector-width"="512" }\n'
    return str(machine.emit_assembly(llvm.parse_assembly(text)))


def loops(text: str, instruction: str) -> Iterator[list[str]]:
    """Yield the basic blocks that hold many of an instruction."""
    block: list[str] = []
    for line in [*text.splitlines(), ".LBB"]:
        if line.startswith(".LBB"):
            if sum(bool(re.search(rf"\b{instruction}", x)) for x in block) >= 4:
                yield block
            block = []
        block.append(line)


@pytest.mark.parametrize(
    ("dtypes", "target", "triple", "instruction", "registers"),
    [
        (FLOATS, AVX512, X86, "vfmadd", "zmm"),
        (FLOATS, AVX2, X86, "vfmadd", "ymm"),
        (FLOATS, NEON, ARM, "fmla", "v"),
        (CODES, AVX512, X86, "vp(?:maddwd|dpwssd)", "zmm"),
        (CODES, VNNI, X86, "vpdpbusd", "zmm"),
        (TURNED, VNNI, X86, "vpdpbusd", "zmm"),
        (CODES, AVX_VNNI, X86, "vpdpbusd", "ymm"),
        (CODES, AVX2, X86, "vpmaddwd", "ymm"),
        (CODES, NEON, ARM, "[us]?ml?[la]+", "v"),
    ],
    ids=[
        *("avx512 floats", "avx2 floats", "neon floats", "avx512 codes", "vnni codes", "vnni turned codes"),
        *("avx-vnni codes", "avx2 codes", "neon codes"),
    ],
)
def test_sums_stay_in_registers(
    dtypes: tuple[Dtype, Dtype, Dtype], target: Target, triple: str, instruction: str, registers: str
) -> None:
    """The innermost loop multiplies and adds in the widest registers, and moves none of them to the stack."""
    found = list(loops(assembly(product(dtypes), target, triple), instruction))

    assert found
    for block in found:
        stack = [x for x in block if re.search(r"\(%rsp\)|\[sp", x) and re.search(rf"\b%?{registers}\d", x)]
        assert not stack
        assert any(re.search(rf"\b{instruction}.*{registers}\d", x) for x in block)


def test_codes_packed_for_another_processor_are_refused() -> None:
    """Panels of fours have a meaning only where the instruction is; the host computes such a step."""
    (ready,) = prepare_contractions(Program([product(CODES)]), VNNI).steps

    assert emit_contraction(ready, VNNI) is not None
    assert emit_contraction(ready, AVX512) is None
    assert tactics_contraction(ready, AVX512) == ["host"]
