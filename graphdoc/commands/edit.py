"""``graphdoc edit``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from graphdoc.commands.common import ops_option
from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import STDOUT, check_model_target, check_targets

_VERBS = (
    (
        "extract",
        "IN,…:OUT,…",
        "Keep what computes OUT from IN; no IN: from the inputs, no OUT: to the outputs.",
    ),
    ("rename", "OLD=NEW", "Rename a value: input, output, weight or inner value."),
    ("rename-node", "OLD=NEW", "Rename a node."),
    ("rename-dim", "OLD=NEW", "Rename a symbol of dims."),
    ("prefix", "TEXT", "Put a text before the names of all values and nodes."),
    ("output", "VALUE", "Let an inner value come out."),
    ("remove-output", "VALUE", "Remove an output, and the nodes that only it needed."),
    ("remove-input", "VALUE", "Remove an input that nothing reads."),
    ("order-inputs", "A,B,…", "Bring inputs into this order; others follow."),
    ("order-outputs", "A,B,…", "Bring outputs into this order; others follow."),
    ("set-shape", "X=Nx3x224", "Declare an input's shape; ? is unknown. Fixed sizes inside are repaired."),
    ("freeze", "N=1", "Fix a symbol, or a dim: x.0=1."),
    ("free", "X.0=N", "Let a dim take any size; what knew the old size is repaired."),
    ("set-dtype", "X=float16", "Change the dtype of an input or output; a Cast is added."),
    ("to-input", "WEIGHT", "Turn a weight into an input."),
    ("to-initializer", "X=FILE.npy", "Give an input or inner value a fixed content."),
    ("set-initializer", "WEIGHT=FILE.npy", "Give a weight another content."),
    ("add", "NODE", "Add a node: 'y = Relu(x)'."),
    ("insert", "NODE", "Put a node after its first input; all that read that read the node."),
    ("replace", "NODE", "Let a node compute its outputs, in place of all that did."),
    ("remove", "NODE", "Remove a node that nothing reads (its name, or that of an output)."),
    ("bypass", "NODE", "Take a node out; its readers read its first input."),
    ("set-attr", "NODE:NAME=VALUE", "Set an attribute."),
    ("merge", "FILE", "Put another model beside."),
    ("chain", "FILE[:OUT=IN,…]", "Feed outputs to another model; by name if not said."),
    ("external", "FILE|DIR/", "Put weights into one file, or a file each, beside OUT."),
    ("external-from", "SIZE", "Weights smaller than this stay in the model (default 1KiB)."),
    ("opset", "N", "Convert to another opset."),
    ("ir-version", "N", "Set the version of the file format."),
    ("meta", "KEY=TEXT", "Set metadata; without a text, remove it."),
    ("strip", "docs,…", "Take away docs, metadata, types (of inner values) or names (of nodes)."),
    ("script", "FILE.py", "Run edit(model) of a Python file."),
)
_FLAGS = (
    ("inline", "Put all weights into the model."),
    ("fold", "Compute once what is the same in every run."),
    ("cleanup", "Remove what no output needs."),
    ("sort", "Bring nodes into an order in which each comes after what it reads."),
)


class _InOrder(click.Command):
    """A command that notes its edits in the order in which they stand on the command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        verbs = {name.replace("-", "_"): name for name, *_ in (*_VERBS, *_FLAGS)}
        left = {name: list(given.get(name) or ()) for name in verbs if isinstance(given.get(name), list)}
        ctx.meta["graphdoc.edits"] = [
            (verbs[str(item.name)], str(left[str(item.name)].pop(0)) if str(item.name) in left else "")
            for item in order
            if item.name in verbs
        ]
        return super().parse_args(ctx, args)


def _with_verbs(function: Any) -> Any:
    for name, metavar, text in reversed(_VERBS):
        function = click.option(f"--{name}", multiple=True, metavar=metavar, help=text)(function)
    for name, text in _FLAGS:
        function = click.option(f"--{name}", is_flag=True, help=text)(function)
    return function


def _data_file(options: Mapping[str, Any]) -> list[str]:
    """Return where --external puts all weights together, which --json must leave alone."""
    places = [place for place in options["external"] if place and not place.endswith("/")]
    return [str(Path(options["out"]).parent / place) for place in places]


@click.command("edit", cls=_InOrder)
@click.argument("model", type=click.Path())
@click.option("-o", "--out", metavar="OUT", required=True, help="Where the result goes.")
@_with_verbs
@ops_option
@click.option("--no-verify", is_flag=True, help="Do not check the result by running or loading it.")
@click.option("--json", "json_", metavar="FILE|-", help="Write what was done as JSON; - is stdout.")
@click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Edit a model; the edits are applied in the order given.

    Values go by name; inside a subgraph by the way to it, as in  graphdoc inspect MODEL --layers.  Edits that
    must not change the outputs are verified by running original and result; all others are checked and
    loaded.

    Exit codes: 0 written, 1 the outputs differ where they must not (nothing is written) or something could
    not be repaired, 2 an edit cannot be done, 3 the model, or what would become of it, is not sound.

    \b
      graphdoc edit m.onnx -o part.onnx --extract conv1_out:pool5
      graphdoc edit m.onnx -o n.onnx --free x.0=N --rename x=image
      graphdoc edit m.onnx -o n.onnx --insert 'clipped = Clip(logits, -10.0, 10.0)' --output clipped
    """
    from graphdoc.editing import run
    from graphdoc.reports.edit_text import edit_json, edit_lines

    check_model_target(options["out"])
    edits = ctx.meta["graphdoc.edits"]
    reads = [text.partition(":")[0] for verb, text in edits if verb in ("merge", "chain", "script")]
    check_targets({"-o": options["out"], "--json": options["json_"]}, reads=[*reads, *_data_file(options)])
    result = run(options["model"], options["out"], edits, verify=not options["no_verify"])
    if options["json_"]:
        write_or_print(edit_json(result), options["json_"])
    if options["json_"] != STDOUT:
        click.echo(edit_lines(result, **print_settings(options["color"])), nl=False)
    return 0 if result else 1
