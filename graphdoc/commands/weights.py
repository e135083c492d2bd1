"""``graphdoc weights``."""

from typing import Any

import click

from graphdoc.commands.common import TOLERANCE
from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import STDOUT, check_model_target, check_targets

_OUT = click.option("-o", "out", metavar="OUT", required=True, help="The model to write.")
_COLOR = click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
_VERBOSE = click.option("-v", "--verbose", is_flag=True, help="List everything.")
_MODEL = click.argument("model", type=click.Path())


@click.group("weights")
def command() -> None:
    """Look at the weights of a model, prune, strip, restore or share them.

    \b
      graphdoc weights stats m.onnx                         what each one holds
      graphdoc weights prune m.onnx -o sparse.onnx          2:4 pruning, by magnitude
      graphdoc weights strip m.onnx -o bare.onnx            a graph to share without weights
      graphdoc weights restore bare.onnx --weights m.onnx -o again.onnx
      graphdoc weights dedup m.onnx -o smaller.onnx         share equal weights

    Exit codes: 0 done, 2 usage, 3 the model or the weights cannot be read or do not fit.
    """


def _check_out(options: dict[str, Any], *reads: str) -> None:
    check_model_target(options["out"])
    check_targets({"-o": options["out"]}, reads=(options["model"], *reads))


@command.command("stats")
@_MODEL
@click.option("--json", "json_", metavar="FILE|-", help="Write the statistics as JSON; - is stdout.")
@_COLOR
def stats(**options: Any) -> int:
    """Show dtype, shape, range, spread, zeros, and what fp16 and int8 would lose, for every weight."""
    from graphdoc.reports.weights_text import stats_json, stats_lines, style_of
    from graphdoc.surgeon.model import open_source
    from graphdoc.surgeon.weight_stats import weight_stats

    check_targets({"--json": options["json_"]}, reads=(options["model"],))
    source = open_source(options["model"])
    rows = list(weight_stats(source.model))
    if options["json_"]:
        write_or_print(stats_json(source.name, rows), options["json_"])
    if options["json_"] != STDOUT:
        click.echo(stats_lines(source.name, rows, style_of(**print_settings(options["color"]))), nl=False)
    return 0


@command.command("prune")
@_MODEL
@_OUT
@click.option("--only", multiple=True, metavar="GLOB", help="Layers or weights to prune; repeatable.")
@click.option("--skip", multiple=True, metavar="GLOB", help="Layers or weights to leave alone; repeatable.")
@click.option(
    "--max-loss", type=TOLERANCE, help="Leave weights alone that lose more of their norm, as in 0.3."
)
@_COLOR
@_VERBOSE
def prune_command(**options: Any) -> int:
    """Set two of every four weights along the summed axis to 0: the pattern of sparse tensor cores."""
    from graphdoc.reports.weights_text import prune_lines, style_of
    from graphdoc.surgeon.model import load, save
    from graphdoc.surgeon.prune import prune

    _check_out(options)
    model = load(options["model"])
    report = prune(model, only=options["only"], skip=options["skip"], most=options["max_loss"])
    save(model, options["out"])
    style = style_of(**print_settings(options["color"]))
    click.echo(prune_lines(report, style, verbose=options["verbose"]), nl=False)
    return 0


@command.command("strip")
@_MODEL
@_OUT
@_COLOR
def strip_command(**options: Any) -> int:
    """Take the weights out, so that the graph can be shared; name, dtype, shape and hash stay."""
    from graphdoc.reports.weights_text import stub_line, style_of
    from graphdoc.surgeon.model import load, open_source, save
    from graphdoc.surgeon.stripping import strip

    _check_out(options)
    proto, stubs = strip(open_source(options["model"]))
    save(load(proto), options["out"])
    note = "zeros stand in their place; graphdoc weights restore puts them back"
    click.echo(stub_line("stripped", stubs, style_of(**print_settings(options["color"])), note), nl=False)
    return 0


@command.command("restore")
@_MODEL
@click.option(
    "--weights", metavar="FILE", required=True, help="The model before, or an .npz file of weights."
)
@_OUT
@_COLOR
def restore_command(**options: Any) -> int:
    """Put the weights back into a stripped model; each is checked against its hash."""
    from graphdoc.reports.weights_text import stub_line, style_of
    from graphdoc.surgeon.model import open_source, save
    from graphdoc.surgeon.stripping import restore

    _check_out(options, options["weights"])
    weights = options["weights"]
    found = weights if weights.endswith(".npz") else open_source(weights)
    model, stubs = restore(open_source(options["model"]), found)
    save(model, options["out"])
    note = "all hashes agree"
    click.echo(stub_line("restored", stubs, style_of(**print_settings(options["color"])), note), nl=False)
    return 0


@command.command("dedup")
@_MODEL
@_OUT
@_COLOR
@_VERBOSE
def dedup_command(**options: Any) -> int:
    """Let nodes share one initializer where several hold the same."""
    from graphdoc.reports.weights_text import dedup_lines, style_of
    from graphdoc.surgeon.model import load, save
    from graphdoc.surgeon.weight_stats import dedup

    _check_out(options)
    model = load(options["model"])
    shared = dedup(model)
    save(model, options["out"])
    style = style_of(**print_settings(options["color"]))
    click.echo(dedup_lines(shared, style, verbose=options["verbose"]), nl=False)
    return 0
