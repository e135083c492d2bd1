#!/usr/bin/env bash
# Builds .tree/graphdoc, a tree of links in the shape of the installed package, for mypy and editors.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf .tree
mkdir -p .tree/graphdoc
for entry in graphdoc/*; do
    ln -s "../../$entry" ".tree/graphdoc/$(basename "$entry")"
done
for folder in engine surgeon compare reports; do
    ln -s "../../$folder" ".tree/graphdoc/$folder"
done
