#!/usr/bin/env bash
# Lint, types and tests, the quick ones first; arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
EXTRAS=test source launch/venv.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

ruff check .
ruff format --check .
mypy
python -m pytest "$@"
echo "launch/test.sh: lint, types and tests passed"
