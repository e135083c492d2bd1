#!/usr/bin/env bash
# Makes .venv with graphdoc installed from this folder, editable: scripts/venv.sh EXTRA
# PYTHON names another interpreter than the newest of python3, python3.13 … python3.11 that fits.
set -euo pipefail
cd "$(dirname "$0")/.."

fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

interpreter() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if fits "$name"; then
            echo "$name"
            return
        fi
    done
    echo "graphdoc needs Python 3.11 or newer; found: $("${PYTHON:-python3}" --version 2>&1 || true)" >&2
    echo "  next   make PYTHON=/path/to/python3.12 ${MAKECMDGOALS:-demo}" >&2
    return 1
}

if ! fits .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(interpreter)
    if ! "$python" -m venv --clear .venv; then
        echo "could not make .venv with $python" >&2
        echo "  next   install its venv module (Debian, Ubuntu: apt install python3-venv), then repeat" >&2
        exit 1
    fi
fi
.venv/bin/python -m pip install --quiet --editable ".[$1]"
# An editable install compiles nothing, and where PYTHONDONTWRITEBYTECODE is set every start would do it again.
.venv/bin/python -m compileall -q graphdoc reports compare surgeon engine
