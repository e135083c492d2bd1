"""``python -m graphdoc``."""

from graphdoc.cli import main

main()
